"""A sparse problem on a working set of features held in memory: accelerated proximal gradient, and Newton steps where
that creeps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regraft.heads.data_term import SMOOTHNESS, DataTerm
from regraft.heads.sparse.newton import newton
from regraft.heads.sparse.penalty import Penalty

__all__ = ["WorkingSet"]

_CHECK_EVERY = 10
_PATIENCE = {"l1": (100, 20), "l21": (1000, 100)}
"""Proximal steps before the first Newton steps, and between them: easy problems end before."""
_ROUNDS = 5
_SLACK = 1 + 1e-6


class WorkingSet:
    """Columns of X in memory, centred and scaled to unit ω-variance, below a row of ones for the intercept.

    Centring only moves the intercept, and scaling turns λ into a threshold for each feature, so the solution is that
    of the raw columns; the steps are then as long for a faint feature as for a strong one.

    Args:
        fit: the data term.
        penalty: what shrinks the coefficients.
        gather: columns (k,) → (k, n) float64 of X.
        dtype: of the products inside :meth:`descend`; :attr:`matrix`, which certificates are made with, is float64.
    """

    def __init__(self, fit: DataTerm, penalty: Penalty, gather: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        self.fit, self.penalty, self.dtype, self._first = fit, penalty, dtype, dtype
        self._gather, self._share = gather, fit.weights.mean(0)
        rows = fit.targets.shape[1]
        self.columns = torch.empty(0, dtype=torch.long)
        self.raw = torch.empty(0, rows, dtype=torch.float64)
        self.means, self.scales = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._steepness = 1.0
        self._prepare(torch.ones(1, rows, dtype=torch.float64))

    def _prepare(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._fast = matrix.to(self.dtype)
        spread = (matrix.square() @ self.fit.weights.T).amax(1)
        self._limit = SMOOTHNESS[self.fit.loss] * float(spread.sum()) * 1.01  # trace ≥ largest eigenvalue

    def __len__(self) -> int:
        return int(self.columns.numel())

    def switch(self, columns: Tensor) -> None:
        """Hold these columns (sorted, distinct); those already here are not read again."""
        here = torch.isin(columns, self.columns)
        place = torch.searchsorted(self.columns, columns[here])
        raw = torch.empty(len(columns), self.raw.shape[1], dtype=torch.float64)
        raw[here] = self.raw[place]
        if not bool(here.all()):
            raw[~here] = self._gather(columns[~here])
        self.columns, self.raw = columns, raw
        self.means = raw @ self._share
        centred = raw - self.means[:, None]
        self.scales = (centred.square() @ self._share).sqrt()
        self.scales = torch.where(self.scales > 0, self.scales, torch.ones_like(self.scales))
        self._prepare(torch.cat([torch.ones(1, raw.shape[1], dtype=torch.float64), centred / self.scales[:, None]]))

    def restart(self) -> None:
        """Iterate in the first precision again, at the next columns: a new penalty begins far from its solution."""
        self.dtype = self._first

    def refine(self) -> None:
        """Iterate in float64 from here on, until :meth:`restart`."""
        self.dtype, self._fast = torch.float64, self.matrix

    def scaled(self, weights: Tensor, intercept: Tensor) -> Tensor:
        """(C, 1 + k) coefficients of the held matrix from W (C, k) and b (C, 1)."""
        return torch.cat([intercept + (weights * self.means).sum(1, keepdim=True), weights * self.scales], 1)

    def unscaled(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """W (C, k) and b (C, 1) from coefficients of the held matrix."""
        weights = state[:, 1:] / self.scales
        return weights, state[:, :1] - (weights * self.means).sum(1, keepdim=True)

    def descend(self, state: Tensor, strength: float, target: float, budget: int) -> tuple[Tensor, int]:
        """Minimise over the held columns until the duality gap there is at most ``target``.

        Proximal steps find which coefficients are zero, and all of them where the problem is easy; after many of them
        Newton steps over the others (:mod:`regraft.heads.sparse.newton`) take turns with some more.

        Args:
            state: (C, 1 + k) float64, where to start.
            strength: λ.
            target: the gap to reach.
            budget: at most so many iterations (and those of the last Newton steps): each is a product with the columns
                and one with their transpose.

        Returns:
            The coefficients (float64) and the number of iterations.
        """
        (patience, between), spent, before = _PATIENCE[self.penalty.name], 0, None
        thresholds = torch.cat([torch.zeros(1, dtype=torch.float64), strength / self.scales])
        while True:
            state, steps, done = self._accelerated(state, strength, target, min(patience, budget - spent))
            spent += steps
            if done or spent >= budget:
                return state, spent
            state, products, begun, reached = newton(
                self.fit, self.penalty, self._fast, state, thresholds, target, _ROUNDS
            )
            spent += products
            # neither kind may spend much where the other gains more by a product
            better = before is None or (begun - reached) * steps >= (before - begun) * products
            patience = between if better else 2 * patience
            if reached >= begun:  # rounding is what is left of these products
                self.refine()
            before = reached

    def _accelerated(self, state: Tensor, strength: float, target: float, budget: int) -> tuple[Tensor, int, bool]:
        """FISTA (Beck and Teboulle 2009) with adaptive restart (O'Donoghue and Candès 2015) and a step found by
        backtracking on the loss's own divergence, which may also grow: softmax flattens as it fits.

        Returns:
            The coefficients (float64), the number of steps, and whether the gap is reached.
        """
        fit, fast = self.fit, self._fast
        thresholds = torch.cat([torch.zeros(1, dtype=torch.float64), strength / self.scales]).to(self.dtype)
        here = state.to(self.dtype)
        logits = (here @ fast).double()
        ahead, ahead_logits, momentum = here, logits, 1.0
        for count in range(1, budget + 1):
            predictions = fit.predict(ahead_logits)
            gradient = -fit.residual(predictions).to(self.dtype) @ fast.T
            while True:
                found = self.penalty.shrink(ahead - gradient / self._steepness, thresholds / self._steepness)
                found_logits = (found @ fast).double()
                bend = fit.divergence(predictions, found_logits - ahead_logits)
                size = 0.5 * float((found - ahead).double().square().sum())
                if bend <= self._steepness * size * _SLACK or self._steepness >= self._limit:
                    break
                self._steepness = min(2 * self._steepness, self._limit)
            if count % _CHECK_EVERY == 0 and self._gap(found.double(), found_logits, strength) <= target:
                return found.double(), count, True
            if float(((ahead - found) * (found - here)).sum()) > 0:
                momentum = 1.0
            following = (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
            pull = (momentum - 1) / following
            ahead = found + pull * (found - here)
            ahead_logits = found_logits + pull * (found_logits - logits)
            here, logits, momentum = found, found_logits, following
            self._steepness *= 0.95
        return here.double(), budget, False

    def _gap(self, state: Tensor, logits: Tensor, strength: float) -> float:
        """The gap over the held columns, in the precision of the products."""
        fit = self.fit
        logits = logits + fit.recentre(logits)
        predictions = fit.balanced(fit.predict(logits))
        inner = (fit.residual(predictions).to(self.dtype) @ self._fast[1:].T).double()
        peak = float((self.penalty.duals(inner) * self.scales).max()) if len(self) else 0.0
        weights = state[:, 1:] / self.scales
        penalty = strength * float(self.penalty.sizes(weights).sum())
        return fit.value(logits) + penalty - fit.dual(predictions, min(1.0, strength / peak if peak > 0 else 1.0))
