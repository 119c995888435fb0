"""Orthonormal bases of Krylov spaces, and what a matrix is in them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regraft.errors import SolverError

__all__ = ["Krylov"]

_CHUNK = 32  # vectors that are allocated at a time
_SLAB = 2**16  # entries of all vectors that are mixed at a time
_ENOUGH = 0.7  # of a vector's length is left when it was orthogonal before


class Krylov:
    """Orthonormal bases Q of the Krylov spaces of c starting vectors, side by side, and QᵀAQ of each.

    Every vector is made orthogonal to all earlier ones, as often as it takes for Q to be orthonormal to rounding. QᵀAQ
    is kept as it is found, not as the tridiagonal matrix of exact arithmetic: what rounding takes of A's symmetry shows
    in it. A step costs a product with c vectors and 4 n c m operations, m the vectors so far, which stay in memory
    until :meth:`restart` leaves some of them out.

    Args:
        product: A V for ``(n, c)``.
        start: ``(n, c)``, columns of unit norm.
        limit: the most vectors that are held of each.
        fresh: draws a vector ``(n,)`` to go on from when the space is exhausted (c = 1 only). Without it an exhausted
            column ends, and the rest of its projection is zero.
        scale: of the operator, where some of it is known: what is rounding beside that is no direction, though nothing
            larger may be left.
        known: ``(n, p)``, orthonormal, orthogonal to the start: the spaces are those of A on what it leaves. Every
            vector is made orthogonal to it as to Q. (Were it taken off products alone, what rounding leaves of a vector
            along it would have the eigenvalue 0, which may lie beyond all that A has.)
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        start: Tensor,
        limit: int,
        *,
        fresh: Callable[[], Tensor] | None = None,
        scale: float = 0.0,
        known: Tensor | None = None,
    ) -> None:
        self._product, self._fresh, self._scale, self._known = product, fresh, scale, known
        self.size, columns = start.shape
        self.dtype = start.dtype
        self.limit = min(limit, self.size)
        self.steps, self.exhausted = 0, False
        self._following: Tensor | None = start.T.contiguous()
        self._chunks: list[Tensor] = []
        first = min(self.limit, _CHUNK)
        self._inner = torch.zeros(columns, first, first, dtype=torch.float64)  # grows with the steps
        # the part of A q_j outside Q: along the vector that follows, and what is left out for good, by its norm
        self._ahead = torch.zeros(columns, self.limit, dtype=torch.float64)
        self._lost = torch.zeros(columns, self.limit, dtype=torch.float64)

    @property
    def ended(self) -> bool:
        """Whether no step is left: all columns are exhausted, or as many vectors are held as may be."""
        return self._following is None or self.steps == self.limit

    @property
    def projection(self) -> Tensor:
        """T = QᵀAQ, ``(c, m, m)``, float64, symmetric; tridiagonal up to rounding."""
        inner = self._inner[:, : self.steps, : self.steps]
        return (inner + inner.mT) / 2

    def residuals(self, mixes: Tensor) -> Tensor:
        """‖A Q s − Q T s‖ for every column s of ``mixes`` ``(m, k)``, in the first space."""
        inner = self._inner[0, : self.steps, : self.steps]
        inside = (inner - inner.T) / 2 @ mixes
        outside = (self._ahead[0, : self.steps] @ mixes).abs() + self._lost[0, : self.steps] @ mixes.abs()
        return (inside.square().sum(0) + outside.square()).sqrt()

    def restart(self, mixes: Tensor) -> None:
        """Go on from Q S alone, ``(m, k)`` S of orthonormal columns, eigenvectors of QᵀAQ: a thick restart.

        A Q S = Q S Θ + q sᵀ of such S, q the vector that follows and s its coefficients, so that steps go on as before
        with q's row full (Wu and Simon, 2000, "Thick-restart Lanczos method for large symmetric eigenvalue problems").
        In place: no vector is held twice. For c = 1.
        """
        done, kept = self.steps, mixes.shape[1]
        inner, small = self._inner[0, :done, :done], mixes.to(self._chunks[0].dtype)
        skew = (inner - inner.T) / 2 @ mixes
        lost = self._lost[0, :done] @ mixes.abs() + torch.linalg.vector_norm(skew - mixes @ (mixes.T @ skew), dim=0)
        turned, ahead = mixes.T @ inner @ mixes, self._ahead[0, :done] @ mixes
        rows = [chunk[0, place] for chunk in self._chunks for place in range(chunk.shape[1])]
        small = small.to(self._chunks[0].device)
        for start in range(0, self.size, _SLAB):
            part = slice(start, start + _SLAB)
            mixed = small.T @ torch.stack([row[part] for row in rows[:done]])
            for row, value in zip(rows, mixed):
                row[part] = value
        for held, values in ((self._ahead, ahead), (self._lost, lost)):
            held.zero_()
            held[0, :kept] = values
        self._inner.zero_()
        self._inner[0, :kept, :kept] = turned
        self._chunks = self._chunks[: -(-kept // _CHUNK)]
        self.steps = kept

    def combine(self, mixes: Tensor) -> Tensor:
        """Q S, ``(n, k)``, for S ``(m, k)``, in the first space."""
        parts, done = [], 0
        for chunk in self._chunks:
            used = min(chunk.shape[1], self.steps - done)
            parts.append(chunk[0, :used].T @ mixes[done : done + used].to(chunk.device, chunk.dtype))
            done += used
        return torch.stack(parts).sum(0)

    def step(self) -> None:
        """One product with each column's next vector."""
        if self._following is None or self.steps == self.limit:
            raise SolverError("a step of Lanczos", expected="a space that is not exhausted", got=f"{self.steps} steps")
        current, place = self._following, self.steps
        if place == sum(chunk.shape[1] for chunk in self._chunks):
            columns, size = current.shape
            self._chunks.append(current.new_empty(columns, min(_CHUNK, self.limit - place), size))
        if place == self._inner.shape[1]:
            more = min(place, self.limit - place)
            self._inner = torch.nn.functional.pad(self._inner, (0, more, 0, more))
        self._chunks[-1][:, place % _CHUNK] = current
        self.steps += 1
        self._inner[:, place, :place] = self._ahead[:, :place]  # that part is in Q now
        self._ahead[:, :place] = 0.0
        image = self._product(current.T).T.contiguous()
        if not bool(torch.isfinite(image).all()):
            do = "look for NaN in the inputs and the parameters, or use a wider dtype"
            raise SolverError("a product in Lanczos", expected="finite numbers", got="NaN or infinity", do=do)
        whole = torch.linalg.vector_norm(image, dim=1).to("cpu", torch.float64)
        image, found = self._orthogonal(image)
        self._inner[:, : self.steps, place] = found
        norm = torch.linalg.vector_norm(image, dim=1).to("cpu", torch.float64)
        largest = self._inner[:, : self.steps, : self.steps].abs().amax((1, 2))
        floor = torch.maximum(100 * whole, 4 * largest).clamp_min(100 * self._scale)
        alive = norm > torch.finfo(image.dtype).eps * floor
        nothing = torch.zeros_like(norm)
        self._ahead[:, place], self._lost[:, place] = (
            torch.where(alive, norm, nothing),
            torch.where(alive, nothing, norm),
        )
        scale = torch.where(alive, norm, torch.full_like(norm, torch.inf)).to(image.device, image.dtype)
        self.exhausted = not bool(alive.any())
        self._following = self._renewed() if self.exhausted else image / scale[:, None]

    def _orthogonal(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors ``(c, n)`` less their parts in Q and along what is known, and those in Q by coefficients ``(c, m)``.

        First the two latest directions, in which nearly all lies; then all of them; and all again where that took more
        than a rounding's worth (Daniel, Gragg, Kaufman and Stewart, 1976).
        """
        found = torch.zeros(len(image), self.steps, dtype=torch.float64)
        left = []
        for column, vector in enumerate(image):
            rest, norm = self._swept(column, vector, found[column], max(0, self.steps - 2)), -1.0
            before = float(torch.linalg.vector_norm(rest))
            for _ in range(3):
                if self._known is not None:
                    rest = rest - self._known @ (self._known.T @ rest)
                rest = self._swept(column, rest, found[column], 0)
                norm = float(torch.linalg.vector_norm(rest))
                if norm >= _ENOUGH * before:
                    break
                before = norm
            left.append(rest)
        return torch.stack(left), found

    def _swept(self, column: int, vector: Tensor, found: Tensor, first: int) -> Tensor:
        """A vector less its parts along Q's vectors from the first on, whose coefficients are added to ``found``."""
        for number in range(first // _CHUNK, len(self._chunks)):
            start = number * _CHUNK
            low, high = max(first, start), min(self.steps, start + _CHUNK)
            used = self._chunks[number][column, low - start : high - start]
            part = torch.mv(used, vector)
            vector = torch.addmv(vector, used.T, part, alpha=-1)
            found[low:high] += part.to("cpu", torch.float64)
        return vector

    def _renewed(self) -> Tensor | None:
        """A unit vector orthogonal to Q, where there is one."""
        if self._fresh is None or self.steps == self.size - (0 if self._known is None else self._known.shape[1]):
            return None
        image, _ = self._orthogonal(self._fresh()[None])
        return image / torch.linalg.vector_norm(image)
