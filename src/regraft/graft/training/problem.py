"""Training as a problem of the protocol: prepare the head, choose how to train on a hold-out, train on all rows.

The choice (learning rate, τ, and where a head is refitted its scaling, form and penalty) is made on a seeded,
stratified fifth of the problem's rows, which no group crosses: *twins* are trained on the other four fifths and judged
on it. The final model is trained on all rows with the choices. A hold-out and not a cross-validation, because every
fold would be a training. The chosen twin's outputs on the hold-out also give the temperature.

Why a twin for refitted heads too: rows that a network was trained on look easier through it than new ones, so a
cross-validation of λ among them would choose too small a penalty. The twin's features of the held-out fifth are of
rows that it never saw, while the head is solved on rows that it was trained on: the situation of the final model, at
the cost of one more sweep and none more training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regraft.data import holdout
from regraft.errors import DataError, RecipeError
from regraft.features import Plan
from regraft.graft.adapted.model import Adapted
from regraft.graft.frozen.problem import FeatureHead, FeatureProblem
from regraft.graft.loop.manifest_rows import ManifestRows
from regraft.graft.loop.objective import Objective
from regraft.graft.loop.rows import AT_ONCE
from regraft.graft.problem import Head, HeldOut, Problem, Task
from regraft.graft.protocol import FRACTION
from regraft.graft.stages.training import Probe, Train
from regraft.graft.team import Team
from regraft.graft.training.choice import (
    EDGE,
    FINALS,
    SOLVED,
    Choice,
    candidate,
    curve,
    final_collapsed,
    final_diverged,
    final_lost,
    final_not_begun,
    lost,
    notes,
    one_class,
    told_little,
)
from regraft.graft.training.finetune import ENOUGH
from regraft.graft.training.instruments import Instruments
from regraft.graft.training.live import live_heads
from regraft.graft.training.probing import Heads, probing_config, probing_heads, starting_head
from regraft.graft.training.refit import Refit
from regraft.graft.training.search import search, searched_steps
from regraft.graft.training.seen import commonest, probing_figure
from regraft.graft.training.trial import Trial, Work
from regraft.graft.training.twin import collapsed, whole_trainings
from regraft.heads import Response, Status, difference, higher_is_better, link, measure, temperature
from regraft.network import Network
from regraft.record import Candidate, Finding
from regraft.record.protocol import TRAINING_HOLDOUT

__all__ = ["TrainedHead", "TrainingProblem", "live_steps", "planned"]


def planned(probe: Probe | None, train: Train, rows: int, *, twice: bool) -> int:
    """The steps that :meth:`TrainingProblem.solve` takes at most where no whole training has to be made again: the
    choice, the final training, and :func:`live_steps`.

    Args:
        probe: how heads are probed before; ``None`` for a head that was solved.
        train: learning rates and schedule.
        rows: of the problem.
        twice: a second final training follows, on all rows after one on part of them.
    """
    taus = (SOLVED,) if probe is None else probe.candidates
    whole = train.config.total(rows)
    finals = 2 if twice else 1
    steps = searched_steps(len(train.lrs), taus, whole, widen=train.widen) + (1 + finals) * whole
    return steps + live_steps(probe, train, rows, twice=twice)


def live_steps(probe: Probe | None, train: Train, rows: int, *, twice: bool) -> int:
    """Those of head probing where that runs the backbone; see :func:`planned`."""
    if probe is None or not (probe.augmented or train.tuning.anew):
        return 0
    return (3 if twice else 2) * max(probe.candidates) * probing_config(probe, 1, 0).batches(rows)


@dataclass(frozen=True, eq=False)
class TrainedHead(Head):
    """A trained model, and how it was chosen.

    Attributes:
        model: the final one, trained on all rows, or where that failed the one that made the choice.
        rows: how many it was trained on.
        choice: the learning rate and τ that were taken.
        last: the final training; ``None`` if the backbone stays as it is, or no head for it could be prepared.
        kept: the training of :attr:`model`: ``last``, or where that failed an earlier one.
        judged: every candidate's training, best first.
        held: the chosen twin on the rows that chose it; ``None`` for a model that took over another's choices.
        metric: what candidates were judged by.
        notes: findings of the choice and of the final training.
        shown: further figures: ``selection``, what the head that training began from chose, and ``layers`` of a head
            that was refitted or stays on the frozen backbone.
        seen: more of the figure ``training``: how the heads were probed, what the instruments saw.
    """

    model: Adapted
    rows: int
    choice: Choice
    last: Trial | None
    kept: Trial | None
    judged: tuple[Trial, ...]
    held: HeldOut | None
    metric: str
    notes: tuple[Finding, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Learning rates and τ with their scores where they were last judged."""
        key = None if self.choice.frozen else (self.choice.lr, self.choice.tau)
        return tuple(candidate(trial, self.metric, trial.whole and trial.key == key) for trial in self.judged)

    @property
    def status(self) -> Status:
        """How the training of the model that is kept ended: of one that goes on to the end of its steps, well."""
        if self.choice.frozen:
            return Status(True, 0, 0.0, "the backbone stays as it is")
        outcome = None if self.last is None else self.last.outcome
        if self.last is None or outcome is None or self.last.said or self.last.failed:
            steps = 0 if outcome is None else outcome.steps
            return Status(True, steps, math.nan, "the model of an earlier training is kept")
        return Status(outcome.status in ("completed", "stopped"), outcome.steps, math.nan, outcome.message)

    def predict_proba(self, problem: TrainingProblem) -> Tensor:
        """Probabilities of another problem's rows, by a pass of the trained network over them."""
        return problem.predicted(self.model)

    def held_out(self) -> HeldOut:
        """The hold-out's rows by the chosen twin."""
        if self.held is None:
            raise RecipeError("these choices were made on other rows")
        return self.held

    def adapted(self, task: Task, network: Network, plan: Plan) -> Adapted:
        """The final model."""
        return self.model

    def figures(self, problem: TrainingProblem, plan: Plan) -> dict[str, Any]:
        """``training``: how many ``rows`` the model was trained on, loss and score of every training by epoch, and
        :attr:`seen`; and what is in :attr:`shown`."""
        made = [trial for trial in (self.last, *self.judged) if trial is not None]
        if self.kept is not None and not any(self.kept is trial for trial in made):
            made.insert(1, self.kept)
        runs = [curve(t, self.metric, final=t is self.last, kept=t is self.kept) for t in made]
        return {"training": {"metric": self.metric, "rows": self.rows, "runs": runs, **self.seen}, **self.shown}

    def findings(self) -> Iterator[Finding]:
        """What training had to say."""
        yield from self.notes


@dataclass(frozen=True, eq=False)
class TrainingProblem(Problem):
    """Rows to train a network on.

    Attributes:
        task: the labels, and how models are judged.
        rows: the inputs, decoded.
        frozen: the features of the frozen backbone that heads are prepared on.
        network, plan: the backbone, and the blocks of ``frozen``.
        stages: how the head is prepared (``None``: it is solved on ``frozen``), the training, and the refit.
        work: where trainings are kept and counted.
        settled_on: the head whose choices are taken over.
        origin: the backbone as it was published, where ``network`` has other weights from the start.
    """

    task: Task
    rows: ManifestRows
    frozen: FeatureProblem
    network: Network
    plan: Plan
    stages: tuple[Probe | None, Train, Refit | None]
    work: Work
    settled_on: TrainedHead | None = None
    origin: Network | None = None

    @property
    def dear(self) -> bool:
        """Yes: a solve is several trainings."""
        return True

    def take(self, rows: np.ndarray) -> TrainingProblem:
        """The problem on some of its rows."""
        return replace(self, task=self.task.take(rows), rows=self.rows.take(rows), frozen=self.frozen.take(rows))

    def settled(self, head: TrainedHead) -> TrainingProblem:
        """The problem with the choices of a head trained on part of the rows."""
        return replace(self, settled_on=head)

    def predicted(self, model: Adapted) -> Tensor:
        """Probabilities (or values) of these rows by a model for raw inputs, ``(N, C)``."""
        parts = torch.arange(len(self.rows)).split(AT_ONCE)
        self.work.passed(len(self.rows))
        return torch.cat([model.probabilities(self.rows.inputs(part)) for part in parts])

    @property
    def probed_on(self) -> FeatureProblem:
        """The features and labels that heads are probed on."""
        return self.frozen

    def by_features(self, head: Adapted) -> Tensor:
        """What a head on the frozen backbone gives for these rows, by the features that are there."""
        design = head.view.design(self.frozen.matrices, self.task.target.outputs)
        return head.readout.logits(design) / head.readout.temperature

    def begun(self, head: Adapted) -> Tensor:
        """What a prepared head predicts of these rows, as it is scored; with a pass over them only where layers below
        it were prepared with it."""
        if head.network is not self.network or head.neck is not None:
            return self.predicted(head)
        return self.seen(self.by_features(head), 1.0)

    def temperature_of(self, outputs: Tensor, labels: Response) -> float:
        """What calibrates a model's outputs on these rows, by those of their labels that it can know."""
        return temperature(outputs.double(), labels)

    def seen(self, outputs: Tensor, temperature: float) -> Tensor:
        """A model's outputs on these rows as they are scored: see :meth:`Head.predict_proba`."""
        return link(self.task.response.link, outputs.double() / temperature)

    # ------------------------------------------------------------------------------------- solving

    def solve(self) -> TrainedHead:
        """Choose on the hold-out, unless the choices are settled, and train on all rows.

        Raises:
            RecipeError: every candidate diverged, or head probing before the least τ.
        """
        chosen = self.settled_on
        if chosen is None:
            return self._chosen()
        spare = (chosen.model, chosen.shown)
        said = tuple(one for one in chosen.notes if one.code not in FINALS)  # which are of the chosen one's own rows
        made = self._final(chosen.choice, chosen.judged, chosen.held, said, chosen.kept, lambda: spare, chosen.seen)
        return replace(made, held=None)  # they are none of these rows

    def heads(self, taus: tuple[int, ...]) -> Heads:
        """The prepared heads by τ, on these rows.

        Raises:
            RecipeError: head probing diverged before the least τ.
        """
        found = self._heads(taus)
        if not found.by_tau:
            raise RecipeError(
                f"head probing diverged before epoch {min(taus)}", got=found.diverged, do="probe less with --tau"
            )
        return found

    def _heads(self, taus: tuple[int, ...]) -> Heads:
        """The same, but none where head probing diverged."""
        found = self.prepared(taus)
        by_tau = {tau: replace(head, source=self.origin or head.source) for tau, head in found.by_tau.items()}
        return replace(found, by_tau=by_tau)

    def prepared(self, taus: tuple[int, ...]) -> Heads:
        """Heads solved on the frozen features, or one probing trajectory's."""
        probe = self.stages[0]
        if probe is None:
            head = self.frozen.solve()
            chosen = isinstance(head, FeatureHead) and head.selection is not None  # positions of masks choose none
            shown = head.figures(self.frozen, self.plan) if chosen else {}
            return Heads({SOLVED: head.adapted(self.task, self.network, self.plan)}, {}, shown=shown)
        anew = self.stages[1].tuning.anew
        if probe.augmented or anew:
            start = starting_head(self.network, self.plan, self.task, probe.hidden, self.task.seed)
            return live_heads(start, self.rows, self.task, probe, taus, anew, self.work)
        (block,) = self.plan.blocks
        features, labels = self.frozen.matrices[block.name], self.rows.labels
        return probing_heads(self.network, self.plan, features, labels, self.task, probe, taus)

    def _chosen(self) -> TrainedHead:
        task, (probe, train, refit) = self.task, self.stages
        out = holdout(task.target, task.groups, FRACTION, task.seed)
        rest, held = self.take(np.flatnonzero(~out)), self.take(np.flatnonzero(out))
        prepared = rest.heads((SOLVED,) if probe is None else probe.candidates)
        whole = lambda lr, tau: rest.trial(prepared.by_tau[tau], lr, tau, held.rows)  # noqa: E731
        taus, floor, noise = sorted(prepared.by_tau), -math.inf, 0.0
        middle = taus[len(taus) // 2]
        if len(train.lrs) > 1 and train.widen:
            begun, noise = held._scored(prepared.by_tau[middle])
            floor = -math.inf if middle == 0 else begun - noise  # at 0 the head is a random one
        found = search(whole, train.lrs, taus, self.work, widen=train.widen, floor=floor, noise=noise)
        fulls, twin, outputs = whole_trainings(whole, found, self.work)
        best, ranking = fulls[0], [*fulls, *(trial for trial in found if trial.outcome is not None)]
        choice = Choice(best.key[0], best.key[1], reached=best.reached)
        probabilities = None
        if train.or_frozen:
            choice, outputs = self._or_frozen(choice, best, prepared, held)
        if not choice.frozen:
            known = self.task.response.seen_elsewhere(torch.from_numpy(np.where(out, 0, -1))).take(
                torch.from_numpy(out)
            )
            choice = replace(choice, temperature=held.temperature_of(outputs, known))
        if refit is not None and not choice.frozen:
            refitted, probabilities = refit.choose(twin, self.rows, self.task, out, self.work)
            choice = replace(choice, refit=refitted)
        if probabilities is None:
            probabilities = held.seen(outputs, choice.temperature)
        if not choice.frozen and self._rows_are_told_apart:
            judged = measure(task.metric, held.task.response, probabilities, held.task.groups, task.seed)
            choice = replace(choice, judged=judged)
        kept = HeldOut(np.flatnonzero(out), probabilities, None, TRAINING_HOLDOUT)
        said = (*notes(ranking, prepared, choice), *told_little(ranking, choice), *one_class(held.task))
        if choice.tau != 0 and not choice.frozen:  # at 0 the head is a random one
            said += tuple(lost(held.task, held.begun(prepared.by_tau[choice.tau]), probabilities))
        probing = None if probe is None else probing_figure(rest.probed_on, self.network, prepared, probe, choice.tau)
        seen: dict[str, Any] = {"probing": probing, "smoothing": train.config.label_smoothing}
        seen |= {"commonest": commonest(rest.task.target), "anew": list(train.tuning.anew)}
        spare = lambda: rest._finished(twin, choice, prepared)  # noqa: E731
        return self._final(choice, tuple(ranking), kept, said, best, spare, seen)

    @property
    def _rows_are_told_apart(self) -> bool:
        """Whether a score is one of rows, and not of the places in them."""
        return self.task.kind != "segmentation"

    def _scored(self, head: Adapted) -> tuple[float, float]:
        """A prepared head's score on these rows, its sign changed where less is better, and its standard error; −∞ and
        0 where the error is not known."""
        if not self._rows_are_told_apart:
            return -math.inf, 0.0
        found = measure(self.task.metric, self.task.response, self.begun(head), self.task.groups, self.task.seed)
        up = higher_is_better(self.task.metric)
        error = (found.value - found.low if up else found.high - found.value) / 1.96
        if not (math.isfinite(found.value) and math.isfinite(error)):
            return -math.inf, 0.0
        team = Team.current()
        return team.agreed(found.value if up else -found.value), team.agreed(error)

    def trial(self, head: Adapted, lr: float, tau: int, held: ManifestRows | None) -> Trial:
        """A training of these rows from a head."""
        train = self.stages[1]
        name = f"lr {lr:g}" if tau == SOLVED else f"lr {lr:g}, tau {tau}"
        return Trial(name, head, train.at(lr, self.task.seed), train.tuning, self.rows, self.task, held, (lr, tau))

    def _or_frozen(self, choice: Choice, best: Trial, prepared: Heads, held: TrainingProblem) -> tuple[Choice, Tensor]:
        """The frozen backbone with the head that was prepared, where training is no better on the hold-out (FT+)."""
        outputs = held.by_features(prepared.by_tau[choice.tau])
        score = Team.current().agreed(Objective.of(self.task).score(outputs, held.rows.labels))
        if best.outputs is None or score >= best.value[0]:
            return replace(choice, frozen=True), outputs
        return choice, best.outputs

    def _final(
        self,
        choice: Choice,
        ranking: tuple[Trial, ...],
        held: HeldOut | None,
        said: tuple[Finding, ...],
        kept: Trial | None,
        spare: Callable[[], tuple[Adapted, Mapping[str, Any]]],
        seen: Mapping[str, Any],
    ) -> TrainedHead:
        """Train on all rows with the choices; where that fails, ``spare`` gives what was trained for the choice, by
        ``kept``."""
        seen = {name: part for name, part in seen.items() if name != "instruments"}  # of another final training
        rows = len(self) if kept is None else len(kept.rows)
        if not (prepared := self._heads((choice.tau,))).by_tau:
            model, shown = spare()
            said = (*(one for one in said if one.code != EDGE), final_not_begun(prepared.diverged, rows))
            return TrainedHead(model, rows, choice, None, kept, ranking, held, self.task.metric, said, shown, seen)
        start = prepared.by_tau[choice.tau]
        if choice.frozen:
            shown = prepared.shown
            return TrainedHead(start, len(self), choice, None, None, ranking, held, self.task.metric, said, shown, seen)
        trial = self.trial(start, choice.lr, choice.tau, None)
        trial.config = replace(trial.config, loop=replace(trial.config.loop, patience=None))
        trial.stop = max(1, round(choice.reached * trial.total))
        level = self.work.instruments
        trial.watch = watch = None if level == "none" else Instruments(level, self.task.seed)
        trained = trial.train(self.work)
        failed: Finding | None = final_diverged(trial, rows)
        finished: tuple[Adapted, Mapping[str, Any]] | None = None
        if trained is not None:
            finished = self._finished(trained, choice, prepared)
            failed = self._failed(finished[0], choice, held, rows)
            trial.failed = "" if failed is None else failed.code.removeprefix("final-training-")
        if failed is not None:
            said = (*(one for one in said if one.code != EDGE), failed)
        model, shown = spare() if failed is not None or finished is None else finished
        if watch is not None and (figure := watch.figure()):
            # of a network that is not kept where its training began, not what became of it
            seen["instruments"] = figure if failed is None else {name: figure[name] for name in ("level", "energy")}
        if failed is None:
            kept, rows = trial, len(self)
        return TrainedHead(model, rows, choice, trial, kept, ranking, held, self.task.metric, said, shown, seen)

    def _failed(self, model: Adapted, choice: Choice, held: HeldOut | None, rows: int) -> Finding | None:
        """What is to be said where the final model, with its refitted head if it has one, is not to be taken: by some
        of the rows that it was trained on it names one class for all, or is clearly below what the model that was
        judged is on rows that it never saw."""
        if not self._rows_are_told_apart:
            return None
        some = self.take(np.random.default_rng(self.task.seed).permutation(len(self))[:ENOUGH])
        found, task = some.predicted(model), some.task
        if task.kind in ("binary", "multiclass"):
            if len(np.unique(task.target.values)) < 2:
                return None
            if collapsed(found, None if held is None else held.probabilities):
                return final_collapsed(choice.refit is not None, rows)
        if choice.judged is None:
            return None
        try:
            now = measure(task.metric, task.response, found, task.groups, task.seed)
        except DataError:  # some of the rows may not hold what the metric needs
            return None
        _, low, high = difference(choice.judged, now)
        return (
            final_lost(choice.judged, now, rows) if (high < 0 if higher_is_better(task.metric) else low > 0) else None
        )

    def _finished(self, trained: Adapted, choice: Choice, prepared: Heads) -> tuple[Adapted, Mapping[str, Any]]:
        """A trained model with its temperature, and where a head is refitted that one; and what to show of it."""
        model = replace(trained, readout=replace(trained.readout, temperature=choice.temperature))
        refit = self.stages[2]
        if refit is None or choice.refit is None:
            # the layers' shares would be those of the head before training
            return model, {name: figure for name, figure in prepared.shown.items() if name == "selection"}
        return refit.final(model, self.rows, self.task, choice.refit, self.work)
