"""Paper 003, Head2Toe: utilizing intermediate representations: 22 rows.

The texts were written down before any result; changing one takes a written decision.
"""

from __future__ import annotations

from regraft.reproduce.head2toe.measured import MEASURED
from regraft.reproduce.packs import T6, T12
from regraft.reproduce.row import Clause, Row

__all__ = ["ROWS"]

_PAGE: tuple[Row, ...] = (
    Row(
        id="h2t-table1",
        paper="003",
        source="Table 1, R50",
        shows="frozen methods",
        paper_figure=(
            "Linear 57.0, +All ℓ2 63.3, ℓ1 64.6, ℓ2,1 64.3, H2T 65.8; natural 65.2→70.5, structured 38.1→53.7 [r]"
        ),
        mini="V1a, R56; T12; fast search; reference scorer on 2 tasks; 20 min",
        needs=("V1a", "R56", *T12),
        clauses=(
            Clause("a", "H2T > Linear (+3) on each"),
            Clause("b", "characters, structured (+5 pooled)"),
            Clause("c", "near ≥ Linear−1"),
            Clause("d", "ℓ1, ℓ2,1 ≥ ℓ2−0.3"),
            Clause("e", "H2T > best +All (paper +1.2)", fragile=True),
            Clause("f", "fast ≥ reference−1 (one cell of its grid)", fragile=True),
        ),
    ),
    Row(
        id="h2t-table1-ft",
        paper="003",
        source="Table 1",
        shows="against FT",
        paper_figure=(
            "R50 Scratch 42.1, FT 63.6, H2T-FT 59.5, FT+ 68.0; ViT 32.8, 63.2, 65.0, 67.9. H2T > FT in 15/19 [r]"
        ),
        mini="V1a, R20; T6; 3 seeds; 40 min",
        needs=("V1a", "R20", *T6),
        clauses=(
            Clause("a", "H2T ≥ FT−1", fragile=True),
            Clause("b", "FT > Scratch (+5)"),
            Clause("c", "FT+ ≥ max(H2T, H2T-FT)−0.5"),
            Clause("d", "FT+ > H2T", fragile=True),
        ),
    ),
    Row(
        id="h2t-table1-vit",
        paper="003",
        source="Table 1, ViT",
        shows="tokens",
        paper_figure="52.8, ℓ2 61.8, ℓ1 62.4, Group 62.7, H2T 63.3",
        mini="TViT on tiny_imagenet; T12",
        needs=("TViT", *T12),
        clauses=(
            Clause("a", "H2T > Linear (+3)"),
            Clause("b", "> best +All", fragile=True),
        ),
    ),
    Row(
        id="h2t-fig2-11l",
        paper="003",
        source="Figs. 2, 11 left",
        shows="gain against affinity",
        paper_figure=(
            "ρ(affinity, H2T−Linear) −0.79, ViT −0.24 [r]. Text: H2T−FT larger when far; Table 1 gives ρ +0.55 [r]"
        ),
        mini="T12; FT on T6",
        needs=("V1a", "R56", *T12),
        clauses=(
            Clause("a", "ρ ≤ −0.5 (V1a and R56)"),
            Clause("b", "ρ(affinity, H2T−FT) < 0", fragile=True),
        ),
    ),
    Row(
        id="h2t-fig3",
        paper="003",
        source="Fig. 3",
        shows="FT wins far away",
        paper_figure=(
            "FT−Linear +19.7 in the 9 lowest, −5.6 in the 9 highest affinities; FT−Scratch +11.0 in the lowest [r]"
        ),
        mini="T6 runs",
        needs=("V1a", "R20", *T6),
        clauses=(
            Clause("a", "FT−Linear: low-affinity half > high half, and > 0 in the low"),
            Clause("b", "FT > Scratch in the low half"),
        ),
    ),
    Row(
        id="h2t-taylor",
        paper="003",
        source="§3.1",
        shows="linearised FT = activations × coefficients",
        paper_figure="identity",
        mini="MLP, float64; S4 fine-tuned gently",
        needs=("S4-sup of C",),
        clauses=(
            Clause("a", "identity ≤ 1e-10"),
            Clause("b", "R² of FT logits on all layers > on the last, 5/5"),
        ),
    ),
    Row(
        id="h2t-fig4-8r",
        paper="003",
        source="Figs. 4 left, 8 right",
        shows="one more layer helps far tasks",
        paper_figure="ρ −0.745; every layer near 0 or negative, late ones most",
        mini="V1a, T12",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "ρ(affinity, oracle gain) ≤ −0.5, also with the layer chosen by validation"),
            Clause("b", "each layer ρ ≤ 0.2"),
            Clause("c", "late third < early third", fragile=True),
        ),
    ),
    Row(
        id="h2t-fig4-9",
        paper="003",
        source="Figs. 4 top right, 9",
        shows="which layer depends on the task",
        paper_figure="no figures",
        mini="same",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "≥ 4 different best layers over T12 (validation)"),
            Clause("b", "mean gain near < structured"),
        ),
    ),
    Row(
        id="h2t-fig4-oracle",
        paper="003",
        source="Fig. 4 table",
        shows="not just more features",
        paper_figure=(
            "Linear 56.53, Control 58.96, Oracle 60.15 (special 80.70/81.00/81.52; structured "
            "36.36/40.88/43.44; natural 65.79/67.03/67.03)"
        ),
        mini=(
            "R56 + 64 features of a layer, or of R20's embedding; T12; oracle uses test rows, "
            "labelled so; validated layer beside"
        ),
        needs=("R56", "R20", *T12),
        clauses=(
            Clause("a", "Control > Linear"),
            Clause("b", "Oracle > Control"),
        ),
    ),
    Row(
        id="h2t-fig6-10",
        paper="003",
        source="Figs. 6 left, 10",
        shows="features, not layers",
        paper_figure=(
            'best near 1,000 of 29,800; 17/19 tasks (not Retinopathy, Flowers). "18 blocks" but R50 has 16 units'
        ),
        mini="V1a, first layer of each block, T12; 8 counts; mean-score and group layers",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "feature-wise > both, mean over counts"),
            Clause("b", "better on ≥ 70 % of tasks"),
            Clause("c", "best count > all (chosen on 3 seeds, tested on 2)", fragile=True),
        ),
    ),
    Row(
        id="h2t-dist",
        paper="003",
        source="Figs. 6 right, 12, 15",
        shows="early layers for far tasks",
        paper_figure="no figures",
        mini="V1a, R56, TViT, T12",
        needs=("V1a", "R56", "TViT", *T12),
        clauses=(
            Clause(
                "a",
                "ρ(affinity, mean relative depth of the kept features) ≥ 0.4, V1a and R56",
                fragile=True,
            ),
            Clause("b", "layers hit: feature-wise ≥ 2× layer-wise at the same count"),
        ),
    ),
    Row(
        id="h2t-fig7l",
        paper="003",
        source="Fig. 7 left",
        shows="select on your own task",
        paper_figure="no figures; no row universally best",
        mini="V1a, 12×12",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "mean off-diagonal Δ < 0"),
            Clause("b", "no row (task selected on) with all Δ ≥ 0"),
            Clause("c", "diagonal within 0.5 of the best in ≥ half the columns", fragile=True),
        ),
    ),
    Row(
        id="h2t-fig7r-14-16",
        paper="003",
        source="Figs. 7 right, 14, 16",
        shows="more candidates",
        paper_figure="no figures; layers 1/16, 1/4, 1; two groups",
        mini="V1a, TViT; T 64, 512, 4096; T12",
        needs=("V1a", "TViT", *T12),
        clauses=(
            Clause("a", "1 > 1/4 > 1/16 at each T"),
            Clause("b", "one task or more rises, one falls with T", fragile=True),
        ),
    ),
    Row(
        id="h2t-table2",
        paper="003",
        source="Table 2",
        shows="choices differ by task",
        paper_figure="T 512/8192/24576 for 7/9/3 R50 tasks [r]; F .001-.2",
        mini="V1a, T12",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "≥ 3 different F and ≥ 2 T chosen over T12"),
            Clause("b", "median F ≤ .1"),
        ),
    ),
    Row(
        id="h2t-table3",
        paper="003",
        source="Table 3, App. B",
        shows="cost",
        paper_figure="FLOPs .0063, size .0107 of FT, 5.67× Linear; search +18 %",
        mini="ledger; the 19 printed rows",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "size = F·N·C + N/32 words over 2048·C matches 19/19 within 0.1 % [r]"),
            Clause("b", "ΣF of the text's grid = .1885"),
            Clause("c", "ours by counting: FLOPs and size < FT"),
        ),
    ),
    Row(
        id="h2t-table4",
        paper="003",
        source="Table 4",
        shows="spread",
        paper_figure=(
            "mean sd: Linear .11, ℓ2 .24, ℓ1 .17, ℓ2,1 .20, H2T .18, FT .83, H2T-FT 4.02, FT+ .52; "
            "ViT .14 .30 .20 .27 .24 (Scratch 1.08) 1.22 .76 .61"
        ),
        mini="rows fixed, other seeds vary",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "sd H2T < sd FT"),
            Clause("b", "Linear ≤ H2T"),
        ),
    ),
    Row(
        id="h2t-fig8l",
        paper="003",
        source="Fig. 8 left, App. F",
        shows="affinity is robust",
        paper_figure=".907 (Table 1 gives .868 [r]); .803",
        mini="V1a, V1b, R56; T12",
        needs=("V1a", "V1b", "R56", *T12),
        clauses=(Clause("", "ρ ≥ 0.7 each pair"),),
    ),
    Row(
        id="h2t-fig11c",
        paper="003",
        source="Fig. 11 centre",
        shows="chosen sets differ",
        paper_figure="like tasks ≈ 40 %, most < 20 % (2,048 of 29,800; chance 6.9 %)",
        mini="V1a, 6.9 % kept",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "median across tasks < 20 %", fragile=True),
            Clause("b", "same task > across"),
            Clause("c", "rendered pairs > average"),
        ),
    ),
    Row(
        id="h2t-fig11r",
        paper="003",
        source="Fig. 11 right",
        shows="rank offset",
        paper_figure="monotone fall",
        mini="V1a, 8 offsets, T12",
        needs=("V1a", *T12),
        clauses=(Clause("", "ρ(offset, mean acc) ≤ −0.9"),),
    ),
    Row(
        id="h2t-fig13",
        paper="003",
        source="Fig. 13",
        shows="data fraction",
        paper_figure="no figures; int(1000f/C), ≥ 1",
        mini="f .25, .5, .75, 1; T12",
        needs=("V1a", *T12),
        clauses=(
            Clause("a", "H2T rises"),
            Clause("b", "gain over Linear at 1 > at .25", fragile=True),
        ),
    ),
    Row(
        id="h2t-table6-7",
        paper="003",
        source="Tables 6, 7",
        shows="which taps",
        paper_figure=(
            "R50 65.8, pre-normalisation 63.5, pre-activation 63.5, +input 65.0; ViT 63.3, only CLS 57.3, +CLS 63.4"
        ),
        mini="V1a; TViT; T12",
        needs=("V1a", "TViT", *T12),
        clauses=(
            Clause("a", "original > both pre-", fragile=True),
            Clause("b", "original > +input", fragile=True),
            Clause("c", "original > only CLS (+1)"),
            Clause("d", "+CLS ≈ original ±0.7"),
        ),
    ),
    Row(
        id="h2t-norm",
        paper="003",
        source="§3.3",
        shows="unit norm per layer; λ forgiving",
        paper_figure="no figures",
        mini="V1a, R56; reference λ 1e-1…1e-5 on 3 tasks",
        needs=("V1a", "R56", *T12),
        clauses=(
            Clause("a", "unit > none", fragile=True),
            Clause("b", "unit > per feature", fragile=True),
            Clause("c", "acc range over λ ≤ 1.5", fragile=True),
        ),
    ),
)

# At scale full no pack is needed: a run looks for VTAB-1k and the backbones itself.
ROWS: tuple[Row, ...] = tuple(row.measured_by(*MEASURED[row.id]) for row in _PAGE)
