"""The scikit-learn face: a classifier and a regressor for pipelines, grids and cross-validation.

With ``model=None`` they are linear heads on the columns of ``X``. With a model, ``X`` is a list of image
paths (or texts, or images) and the backbone's features are swept into the store: in a grid search or a
cross-validation a row that was seen before costs nothing but the look-up of its shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from regraft.data import Kind, Target, checked, scan
from regraft.data.arrays import array_of, one_or_many
from regraft.data.cells import plain
from regraft.errors import DataError, RecipeError
from regraft.features import Plan, by_size, plan, sweep
from regraft.files import digest
from regraft.graft.adapted.model import check_features, check_modality, readable
from regraft.graft.alike import are_copies, together
from regraft.graft.frozen.problem import FeatureProblem
from regraft.graft.options import check_class_weight, check_counts, check_metric
from regraft.graft.problem import Task
from regraft.graft.recipe import Features, Recipe, Select, Solve, find_recipe
from regraft.heads import METRICS, PROPER
from regraft.heads.weights import row_weights
from regraft.linear import Dense, Matrix
from regraft.network import Network, load
from regraft.record import counted
from regraft.wording import some

__all__ = ["GraftClassifier", "GraftRegressor"]


class _Graft(BaseEstimator):
    """What both estimators share: from X to a design, and the solve."""

    model: Any
    method: str
    metric: Any
    folds: int
    random_state: Any
    batch_size: int

    def _read(self, X: Any, *, fit: bool) -> tuple[dict[str, Matrix], Callable[[], tuple[str, ...] | None]]:
        """The features; and for a fit the groups of rows that are copies of one input, which no inner fold may part."""
        if self.model is None:
            rows = np.array(X, dtype=np.float64)
            return {"columns": Dense(torch.from_numpy(rows))}, lambda: _copies(rows)
        check_counts(batch_size=self.batch_size)
        if self._reads_frame(X):
            X = array_of(X, "X")  # a row of numbers is one input
        manifest = scan(_one_column(X), labelled=False)
        check_modality(self.network_, manifest)
        manifest = readable(self.network_, checked(manifest, skip_bad=None), skip_bad=None)
        store = sweep(self.network_, manifest, self.plan_, batch_size=self.batch_size)
        if fit:
            check_features([(manifest, store)], self.plan_)
        return store.matrices(), lambda: together(self.network_.preprocess, manifest).groups

    def _reads_frame(self, X: Any) -> bool:
        """Whether each row of a frame is one input, a row of numbers: then its columns have names that must stay."""
        if not (hasattr(X, "to_numpy") and getattr(X, "ndim", 1) == 2 and self.network_.preprocess.modality == "array"):
            return False
        return X.shape[1] > 1 or array_of(X, "X").dtype.kind in "biuf"  # one column may hold a row of numbers a cell

    def _recipe(self) -> Recipe:
        """The method's recipe.

        Raises:
            RecipeError: a method that does more than solve a head on features of a frozen backbone.
        """
        recipe = find_recipe(self.method)
        if not all(isinstance(stage, Features | Select | Solve) for stage in recipe.stages):
            raise RecipeError(
                f"{type(self).__name__} does not carry out {recipe.name!r}",
                expected="probe, all-layers, head2toe, or a recipe of Features, Select and Solve",
                do="call regraft.adapt(), which does",
            )
        return recipe

    def _prepare(self, X: Any, y: Any, *, numeric: bool) -> tuple[Any, np.ndarray]:
        """Validate as scikit-learn does, and load the backbone; what an earlier fit left would mix with this one's."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        check_counts(optional=(), folds=self.folds)
        check_metric(self.metric, "regression" if numeric else "multiclass", METRICS + PROPER)
        if not numeric:
            _refuse_unclear(y)
        if self.model is None:
            X, y = validate_data(self, X, y, y_numeric=numeric, dtype=np.float64, ensure_min_samples=2)
            return X, y
        if y is None:
            raise DataError(f"{type(self).__name__} learns from labels", expected="a label for every row", got="y=None")
        _refuse_one_input(X)
        y = column_or_1d(y)
        if len(X) != len(y):
            raise DataError("X and y differ in length", expected=f"{len(X)} labels", got=f"{len(y)}")
        if len(y) < 2:
            raise DataError(f"{type(self).__name__} learns from several rows", expected="2 at least", got=f"{len(y)}")
        if numeric and not np.isfinite(np.asarray(y, dtype=np.float64)).all():
            raise DataError("y holds NaN or infinity", expected="a finite number a row", do="leave such rows out")
        self.network_: Network = self.model if isinstance(self.model, Network) else load(self.model)
        self.plan_: Plan = plan(self.network_, [self._recipe().features.taps])
        if self._reads_frame(X):
            validate_data(self, X, skip_check_array=True)
        return X, y

    def _solve(self, X: Any, target: Target, class_weight: Any = None) -> None:
        recipe = self._recipe()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        task = Task(target, None, self.metric, seed, min(self.folds, len(target)), class_weight)
        row_weights(task.response, class_weight, torch.ones(len(task)))  # refuses before the pass what no solve takes
        matrices, copies = self._read(X, fit=True)
        groups = copies()
        groups = None if groups is None or len(set(groups)) == 1 else groups  # all alike
        problem = FeatureProblem(
            replace(task, groups=groups),
            matrices,
            ("none",) if self.model is None else recipe.features.scalings,
            recipe.solve,
            select=recipe.select,
            sizes=self._sizes(recipe) if recipe.select else {},
        )
        self.head_ = problem.solve()
        self.n_iter_ = max(1, self.head_.solution.status.iterations)

    def _sizes(self, recipe: Recipe) -> dict[str, tuple[str, ...]]:
        return {"columns": ("columns",)} if self.model is None else by_size(self.network_, recipe.features.taps)

    def _outputs(self, X: Any, outputs: int) -> np.ndarray:
        check_is_fitted(self, "head_")
        if self.model is None:
            X = validate_data(self, X, reset=False, dtype=np.float64)
        elif one_or_many(X) is not X:  # without labels the pixels (H, W, 3) would be H grey images
            raise DataError("X for a backbone", expected="a list of inputs", got="one image", do="put it into a list")
        elif self._reads_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        design = self.head_.view.design(self._read(X, fit=False)[0], outputs)
        found = self.head_.solution.readout.predict_proba(design).double()
        if lost := (~found.isfinite().all(1)).nonzero().squeeze(1).tolist():
            raise DataError(
                f"{counted(len(lost), 'row')} of X cannot be predicted: {some([f'row {row}' for row in lost], 8)}",
                expected="finite numbers from the " + ("head" if self.model is None else "backbone"),
                got="NaN or infinity",
                do="mend these rows or leave them out",
            )
        return found.numpy()


def _copies(rows: np.ndarray) -> tuple[str, ...] | None:
    """What tells rows of numbers apart, where some are copies of others."""
    names = tuple(digest((row + 0.0).tobytes()) for row in rows)  # -0.0 is 0.0 in other bytes
    return names if are_copies(names, rows.__getitem__) else None


def _one_column(X: Any) -> list[Any]:
    """The rows as a list; a frame or a table of texts must have one column, whose cells are the rows.

    Raises:
        DataError: one text or path alone; several columns: no telling which one holds the inputs.
    """
    _refuse_one_input(X)
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        X = X.to_numpy()
        width: int | None = X.shape[1]
    else:
        table = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUT"
        width = X.shape[1] if table else None
    if width is not None and width != 1:
        raise DataError(
            "X for a backbone", expected="one column of inputs", got=f"{width} columns", do="choose one, as X[name]"
        )
    return list(X) if width is None else X[:, 0].tolist()


def _refuse_one_input(X: Any) -> None:
    """A text, whose length is that of its letters and no number of rows, a path or an image, which has none, or what
    is no list at all.

    Raises:
        DataError: it is one of these.
    """
    if isinstance(X, str | bytes | os.PathLike | Image.Image):
        got = "one path" if isinstance(X, os.PathLike) else "one image" if isinstance(X, Image.Image) else "one text"
        raise DataError("X for a backbone", expected="a list of inputs", got=got, do="put it into a list")
    if not (hasattr(X, "__len__") and hasattr(X, "__getitem__")) or isinstance(X, Mapping):
        raise DataError("X for a backbone", expected="a list of inputs", got=type(X).__name__)


def _refuse_unclear(y: Any) -> None:
    """Labels of which some are absent, or some texts and others numbers: numpy would make texts of all, NaN and "nan"
    one class, and 1 and "1".

    Raises:
        DataError: they are.
    """
    if not isinstance(y, list | tuple) and str(getattr(y, "dtype", "")) not in ("object", "string", "str", "category"):
        return
    labels = [plain(label) for label in y]
    if any(label is None for label in labels):
        raise DataError("y has rows without a label", expected="a label for every row", do="leave such rows out")
    numbers = [label for label in labels if isinstance(label, bool | int | float)]
    texts = [label for label in labels if isinstance(label, str)]
    if numbers and texts:
        raise DataError(
            "y holds texts and numbers",
            expected="labels of one type",
            got=f"such as {texts[0]!r} and {numbers[0]!r}",
            do="write all of them as texts, or all as numbers",
        )


class GraftClassifier(ClassifierMixin, _Graft):
    """A linear classifier on a backbone's features, form and penalty chosen by cross-validation.

    Args:
        model: a backbone by name, a loaded Network, or ``None``: ``X`` is a numeric array.
        method: ``probe``, ``all-layers`` or ``head2toe``.
        metric: what chooses the head.
        folds: inner folds.
        class_weight: ``balanced``, a weight by label, or ``None``.
        random_state: of the folds.
        batch_size: rows per forward pass.

    Attributes:
        classes_: labels as they came.
        head_: the solved head, with all that was tried.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        method: str = "all-layers",
        metric: str = "accuracy",
        folds: int = 5,
        class_weight: Any = None,
        random_state: Any = None,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.method = method
        self.metric = metric
        self.folds = folds
        self.class_weight = class_weight
        self.random_state = random_state
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any) -> GraftClassifier:
        """Solve the head on (X, y)."""
        check_class_weight(self.class_weight, by_label=True)
        X, y = self._prepare(X, y, numeric=False)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                "y has one class only",
                expected="at least 2 classes",
                got="1 class",
                do="bring rows of another class",
            )
        kind: Kind = "binary" if len(self.classes_) == 2 else "multiclass"
        names = tuple(str(i) for i in range(len(self.classes_)))
        self._solve(X, Target(kind, names, codes.astype(np.int64)), self._weights(names))
        return self

    def _weights(self, names: tuple[str, ...]) -> Any:
        """Weights by label, as scikit-learn has them, by the target's class names.

        Raises:
            DataError: a label that y does not hold, while one that it holds is not named: a slip of the pen.
        """
        if not isinstance(self.class_weight, Mapping):
            return self.class_weight
        labels = self.classes_.tolist()
        unknown = [label for label in self.class_weight if label not in labels]
        if unknown and any(label not in self.class_weight for label in labels):
            raise DataError(
                f"class_weight names {unknown[0]!r}",
                expected=f"labels of y, such as {', '.join(map(repr, labels[:5]))}",
            )
        return {name: self.class_weight.get(label, 1.0) for name, label in zip(names, self.classes_)}

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, ``(N, classes)`` in the order of ``classes_``."""
        check_is_fitted(self, "head_")
        return self._outputs(X, len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label per row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]


class GraftRegressor(RegressorMixin, _Graft):
    """Ridge regression on a backbone's features, the penalty chosen by cross-validation.

    Args:
        model, method, metric, folds, random_state, batch_size: as in :class:`GraftClassifier`.

    Attributes:
        head_: the solved head, with all that was tried.
    """

    def __init__(
        self,
        model: Any = None,
        *,
        method: str = "all-layers",
        metric: str = "r2",
        folds: int = 5,
        random_state: Any = None,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.method = method
        self.metric = metric
        self.folds = folds
        self.random_state = random_state
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any) -> GraftRegressor:
        """Solve the head on (X, y)."""
        X, y = self._prepare(X, y, numeric=True)
        values = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        self._solve(X, Target("regression", ("y",), values))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The predicted value per row."""
        check_is_fitted(self, "head_")
        return self._outputs(X, 1)[:, 0]
