"""Paper 000, Gradients as features for deep representation learning: 9 rows.

The texts were written down before any result; changing one takes a written decision.
"""

from __future__ import annotations

from regraft.reproduce.gradients.measured import MEASURED
from regraft.reproduce.row import Clause, Row

__all__ = ["ROWS"]

_PAGE: tuple[Row, ...] = (
    Row(
        id="gf-table1",
        paper="000",
        source="Table 1",
        shows="gradients help only if pretrained",
        paper_figure=(
            "acc: activation 62.87; full: all random 62.83-63.42, θ2 alone pretrained 62.98-64.51, θ1"
            " alone 63.74-65.46, all 70.51 / 70.78 / 71.37 (conv5, 4-5, 3-5); grad: all random, ω "
            "too, 23.09-27.52 (ω pretrained 40.23-44.36), all pretrained 70.14 / 70.89 / 71.55. "
            "Garbled: grad, random ω (paper 001 quotes 70.28, 71.08)"
        ),
        mini="S4-bigan on C unlabelled, 5,000 labels; 8 random/pretrained combinations × 3 θ2",
        needs=("S4-bigan of C", "cifar10_jpeg75"),
        clauses=(
            Clause("a", "full(pretrained) > activation (+2)"),
            Clause("b", "full(random θ1, θ2) ≈ activation ±1.5", fragile=True),
            Clause("c", "full(θ1 only) ≥ b's and < a's", fragile=True),
            Clause("d", "grad(all random, ω too) < activation −10"),
            Clause("e", "grad(pretrained) ≈ full(pretrained) ±1.5"),
        ),
    ),
    Row(
        id="gf-table1-depth",
        paper="000",
        source="Table 1",
        shows="the top layer suffices",
        paper_figure="full as above; FT 71.78 / 73.18 / 74.30",
        mini="same run",
        needs=("S4-bigan of C", "cifar10_jpeg75"),
        clauses=(
            Clause("a", "gain(top) ≥ 0.7 gain(top 3) (paper 0.90)"),
            Clause("b", "FT−full(top) in [−1, 4] (1.27)", fragile=True),
            Clause("c", "FT > full for top 3", fragile=True),
        ),
    ),
    Row(
        id="gf-table2",
        paper="000",
        source="Table 2",
        shows="same, supervised",
        paper_figure=(
            "mAP: activation 82.65; full all pretrained 83.50 / 83.40, any other 82.21-83.15; grad "
            "15.63-23.57 (θ1 random), 62.35-71.73 (θ1 only), 83.05 / 83.12; FT 82.97 / 82.50"
        ),
        mini="V1a, camvid-mAP, θ2 last block, last two; centre crop",
        needs=("V1a", "camvid"),
        clauses=(
            Clause("a", "full > activation", fragile=True),
            Clause("b", "full > grad", fragile=True),
            Clause("c", "full ≥ FT−0.5", fragile=True),
            Clause("d", "full(random θ1) ≈ activation ±1"),
            Clause("e", "grad: random θ1 < θ1 only < pretrained"),
        ),
    ),
    Row(
        id="gf-table3",
        paper="000",
        source="Table 3",
        shows="generative encoders",
        paper_figure=(
            "BiGAN act/grad/full/FT: SVHN 82.04/89.91/89.96/garbled; C10 62.87/70.14/70.51/71.78; "
            "C100 34.30/38.99/39.37/41.05. VAE: 81.95/91.44/90.90/garbled; 52.05/61.47/61.16/65.16; "
            '29.20/35.10/34.83/37.86. (Text\'s "over 10 %" is relative: points are 5.07-8.95)'
        ),
        mini="S4-bigan, S4-vae × F, M, C; 2,000 labels; 25 min",
        needs=(
            *(f"{pretext} of {letter}" for pretext in ("S4-bigan", "S4-vae") for letter in "FMC"),
            "fashion_mnist",
            "mnist",
            "cifar10_jpeg75",
        ),
        clauses=(
            Clause("a", "full > activation in 6/6 cells", fragile=True),
            Clause("b", "pooled error cut ≥ 10 % (paper 7.7-50 %)"),
            Clause("c", "grad ≈ full ±1.5"),
            Clause("d", "FT ≥ full−1"),
        ),
    ),
    Row(
        id="gf-table4-self",
        paper="000",
        source="Table 4",
        shows="pretext task",
        paper_figure=(
            "VOC, COCO: act 57.83, 42.10; grad 57.73, 41.02; full 61.70, 45.62; FT 67.88, garbled (text: −7)"
        ),
        mini="S4-jig, S4-rot on tiny_imagenet; C, camvid-mAP; ten crops",
        needs=("S4-jig", "S4-rot", "tiny_imagenet", "cifar10_jpeg75", "camvid"),
        clauses=(
            Clause("a", "full > act"),
            Clause("b", "full > grad", fragile=True),
            Clause("c", "FT > full", fragile=True),
        ),
    ),
    Row(
        id="gf-table4-sup",
        paper="000",
        source="Table 4",
        shows="supervised source",
        paper_figure="act 83.59, 62.98; grad 84.63, 66.33; full 84.95, 66.45; FT 84.14, 63.43",
        mini="V1a, V1b; camvid-mAP, flowers5, C; ten crops; 20 min",
        needs=("V1a", "V1b", "camvid", "flowers5", "cifar10_jpeg75"),
        clauses=(
            Clause("a", "full > act"),
            Clause("b", "full ≥ grad", fragile=True),
            Clause("c", "full > FT", fragile=True),
        ),
    ),
    Row(
        id="gf-gap",
        paper="000",
        source="§4.3",
        shows="FT−full grows with semantic distance",
        paper_figure="BiGAN +1.27; jigsaw +6.18, ≈ +7; ImageNet −0.81, −3.02 (FT−full)",
        mini="the rows above",
        needs=(
            "S4-jig",
            "S4-rot",
            "V1a",
            "V1b",
            "tiny_imagenet",
            "cifar10_jpeg75",
            "camvid",
            "flowers5",
        ),
        clauses=(Clause("", "gap(jigsaw) > gap(supervised), share≥0.8", fragile=True),),
    ),
    Row(
        id="gf-eq3-7",
        paper="000",
        source="Eqs. 3-7",
        shows="JVP rules, folding",
        paper_figure="exact",
        mini="S4, R20, V1a, an attention block; float64",
        needs=("R20", "V1a"),
        one_scale=True,
        clauses=(
            Clause("a", "JVP vs autodiff ≤ 1e-10"),
            Clause("b", "remainder slope in r 2±0.1 (smooth copy)"),
            Clause("c", "w2=0 gives activation ≤ 1e-12"),
            Clause("d", "folded BN ≤ 1e-5"),
        ),
    ),
    Row(
        id="gf-cost",
        paper="000",
        source="§3.3",
        shows="cost",
        paper_figure="2× the linear operations of FT(θ2); 1× if θ2 is the top layer",
        mini="counted FLOPs; time reported",
        needs=("V1a",),
        one_scale=True,
        clauses=(Clause("", "ratio in [1.8, 2.1] and [0.95, 1.05]"),),
    ),
)

ROWS: tuple[Row, ...] = tuple(row.measured_by(*MEASURED[row.id]) for row in _PAGE)
