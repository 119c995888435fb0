"""The contract on designs with and without structure, and the rules that combine them."""

import pytest
import torch
from torch.func import functional_call, jacrev, jvp, vjp

from regraft.linear import (
    Blocks,
    Dense,
    DenseOperator,
    Design,
    FeatureDesign,
    Identity,
    KroneckerIdentity,
    ShapeError,
    Tag,
    UnitRows,
    cg,
)
from regraft.linear.design import deviations_of, gram_of, rows_of, take_of
from regraft.linear.testing import DesignContract


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()


class Jacobian(Design):
    """∂f/∂θ of a small network: two methods, no structure, everything else by the general rules."""

    def __init__(self, module, batch):
        self.module, self.batch = module, batch
        self.at = {name: value.detach() for name, value in module.named_parameters()}
        shapes = {name: tuple(value.shape) for name, value in self.at.items()}
        super().__init__(shapes, len(batch), module(batch).shape[1], batch.dtype)

    def _f(self, params):
        return functional_call(self.module, params, (self.batch,))

    def _apply(self, coefficients):
        return jvp(self._f, (self.at,), (dict(coefficients),))[1]

    def _adjoint(self, outputs):
        return vjp(self._f, self.at)[1](outputs)[0]


def dense_jacobian(design):
    parts = jacrev(design._f)(design.at)
    count = design.n_rows * design.n_outputs
    return torch.cat([parts[name].reshape(count, -1) for name in design.shapes], dim=1).detach()


X, Y = normal(5, 3, seed=1), normal(5, 4, seed=2)


def features(dtype=torch.float64):
    return FeatureDesign({"a": Dense(X.to(dtype)), "b": UnitRows(Dense(Y.to(dtype)))}, 2)


def dense_features(dtype=torch.float64):
    eye = torch.eye(2, dtype=torch.float64)
    unit = Y.to(dtype).double() / torch.linalg.vector_norm(Y.to(dtype).double(), dim=1, keepdim=True)
    return torch.cat([torch.kron(X.to(dtype).double(), eye), torch.kron(unit, eye)], dim=1)


class TestFeatures(DesignContract):
    def make_design(self):
        return features()

    def dense(self, design):
        return dense_features()


class TestFeaturesInFloat32(DesignContract):
    def make_design(self):
        return features(torch.float32)

    def dense(self, design):
        return dense_features(torch.float32)


class TestFeaturesInFloat16(TestFeatures):
    tolerance = 2e-2

    def make_design(self):
        return features(torch.float16)

    def dense(self, design):
        return dense_features(torch.float16)

    # 16-bit numbers store features; they are no dtype to solve in or to difference large sums in.
    test_primal_and_dual_ridge_agree = None
    test_linearity = None


class TestJacobian(DesignContract):
    def make_design(self):
        return Jacobian(network(), X)

    def dense(self, design):
        return dense_jacobian(design)


class TestSelected(DesignContract):
    def make_design(self):
        return Jacobian(network(), X).take([4, 1, 1])

    def dense(self, design):
        return dense_jacobian(Jacobian(network(), X)).view(5, 2, -1)[[4, 1, 1]].reshape(6, -1)


class TestScaled(DesignContract):
    def make_design(self):
        return Jacobian(network(), X).scaled({"0.weight": 0.5, "2.bias": 3.0}).scaled(2.0)

    def dense(self, design):
        sizes = {"0.weight": (15, 1.0), "0.bias": (5, 2.0), "2.weight": (10, 2.0), "2.bias": (2, 6.0)}
        factor = torch.cat([torch.full((size,), value, dtype=torch.float64) for size, value in sizes.values()])
        return dense_jacobian(Jacobian(network(), X)) * factor


class TestRenamed(DesignContract):
    def make_design(self):
        return Jacobian(network(), X).renamed("net/").scaled({"net/0.bias": 0.5}).renamed("other/")

    def dense(self, design):
        matrix = dense_jacobian(Jacobian(network(), X))
        matrix[:, 15:20] *= 0.5
        return matrix


class TestFeaturesBesideJacobian(DesignContract):
    def make_design(self):
        return features() | Jacobian(network(), X)

    def dense(self, design):
        return torch.cat([dense_features(), dense_jacobian(Jacobian(network(), X))], dim=1)


class TestJacobianBesideFeatures(DesignContract):
    def make_design(self):
        jacobian = Jacobian(network(), X)
        return (jacobian | (features() | jacobian.renamed("again/"))).take([3, 0])

    def dense(self, design):
        jacobian = dense_jacobian(Jacobian(network(), X))
        whole = torch.cat([jacobian, dense_features(), jacobian], dim=1)
        return whole.view(5, 2, -1)[[3, 0]].reshape(4, -1)


class TestOneRowOfOneOutput(DesignContract):
    def make_design(self):
        return FeatureDesign({"a": Dense(X[:1])}, 1)

    def dense(self, design):
        return X[:1]

    # The contract takes a second row where it composes takes; one row is tested below.
    test_take_agrees_with_the_dense_matrix = None


def test_one_row_can_be_taken_and_no_row_gives_empty_outputs():
    design = features()
    weights = Blocks({name: torch.ones(shape, dtype=torch.float64) for name, shape in design.shapes.items()})
    torch.testing.assert_close(design.take([2]).apply(weights), design.apply(weights)[2:3])
    for empty in (design.take([]), Jacobian(network(), X).take([])):
        weights = Blocks({name: torch.ones(shape, dtype=torch.float64) for name, shape in empty.shapes.items()})
        assert empty.apply(weights).shape == (0, 2)
        assert not empty.adjoint(torch.zeros(0, 2, dtype=torch.float64)).flatten().any()
        assert empty.gram().shape == (0, 0)


def test_operators_of_no_rows_are_empty():
    none = features().take([])
    size = none.n_coefficients
    assert none.operator().dense().shape == (0, size)
    assert not none.operator().adjoint(normal(0, 4)).any()
    assert none.gram().dense().shape == (0, 0)
    assert not none.ggn(normal(0, none.n_outputs, none.n_outputs)).dense().any()
    assert cg(none.gram().shifted(1.0), normal(0, 3)).solution.shape == (0, 3)


def test_tags_meet_and_structure_survives_side_by_side():
    f, other = features(), FeatureDesign({"c": Dense(normal(5, 2))}, 2)
    joined = f | other
    assert isinstance(joined, FeatureDesign)
    assert Tag.IDENTITY_KRONECKER in joined.tags
    assert isinstance(joined.gram(), KroneckerIdentity)
    assert Tag.IDENTITY_KRONECKER not in (f | Jacobian(network(), X)).tags
    wrapped = f | other.renamed("w/")
    assert not isinstance(wrapped, FeatureDesign)
    assert isinstance(wrapped.gram({"w/c": 0.3}), KroneckerIdentity)
    torch.testing.assert_close(wrapped.gram({"w/c": 0.3}).dense(), joined.gram({"c": 0.3}).dense())
    assert isinstance(f.take([0, 1]).scaled(2.0), FeatureDesign)


def test_dispatch_can_be_inspected():
    assert gram_of.dispatch(FeatureDesign) is not gram_of.dispatch(Jacobian)
    assert gram_of.dispatch(Jacobian) is gram_of.dispatch(Design)
    assert FeatureDesign in take_of.registry
    assert rows_of.dispatch(Jacobian) is rows_of.dispatch(Design)
    for function in (gram_of, take_of, rows_of):
        with pytest.raises(ShapeError):
            function(object(), None)


def test_apply_takes_blocks_in_any_order_and_plain_dicts():
    design = features()
    weights = {name: normal(*shape) for name, shape in design.shapes.items()}
    backwards = dict(reversed(list(weights.items())))
    assert torch.equal(design.apply(weights), design.apply(Blocks(backwards)))


def test_a_gauss_newton_operator_takes_any_hessian():
    design = Jacobian(network(), X)
    matrix, vector = dense_jacobian(design), normal(design.n_coefficients)
    squared = design.ggn(Identity(10, torch.float64))
    torch.testing.assert_close(squared @ vector, matrix.T @ (matrix @ vector))
    assert Tag.POSITIVE_SEMIDEFINITE in squared.tags
    skew = normal(10, 10)
    general = design.ggn(DenseOperator(skew + skew.T, (Tag.SYMMETRIC,)))
    assert Tag.POSITIVE_SEMIDEFINITE not in general.tags
    torch.testing.assert_close(general.dense(), matrix.T @ (skew + skew.T) @ matrix)
    for wrong in (normal(5, 2, 3), normal(5, 2, 2), Identity(9, torch.float64), torch.eye(2).expand(5, 2, 2)):
        with pytest.raises(ShapeError):
            design.ggn(wrong)


def test_operator_is_the_flattened_design():
    design = Jacobian(network(), X)
    torch.testing.assert_close(design.operator().dense(), dense_jacobian(design))
    torch.testing.assert_close(design.operator().T.dense(), dense_jacobian(design).T)


@pytest.mark.parametrize(
    "design",
    [
        features(),
        features().renamed("x/"),
        features().scaled({"a": 0.5, "b": 3.0}),
        Jacobian(network(), X).scaled(0.5).renamed("x/"),
    ],
    ids=["features", "renamed features", "scaled features", "a scaled and renamed Jacobian"],
)
def test_an_operator_takes_many_vectors_at_once(design):
    flat = design.operator()
    vectors, outputs = normal(flat.shape[1], 3), normal(flat.shape[0], 3)
    one = [design.apply(Blocks.unflatten(v.contiguous(), design.shapes)).reshape(-1) for v in vectors.T]
    back = [design.adjoint(r.reshape(design.n_rows, design.n_outputs)).flatten() for r in outputs.T]
    torch.testing.assert_close(flat @ vectors, torch.stack(one, 1))
    torch.testing.assert_close(flat.T @ outputs, torch.stack(back, 1))
    assert (flat @ vectors[:, :0]).shape == (flat.shape[0], 0)


def test_features_are_read_once_for_many_vectors():
    reads = []

    class Counted:
        shape, dtype = (5, 3), X.dtype

        def rows(self, index):
            reads.append(index)
            return X[index]

    flat = FeatureDesign({"a": Counted()}, 2).operator()
    flat @ normal(flat.shape[1], 5)
    flat.T @ normal(flat.shape[0], 5)
    assert len(reads) == 2


def test_what_cannot_stand_side_by_side_is_refused():
    design = features()
    for other in (
        features(torch.float32).renamed("x/"),
        FeatureDesign({"c": Dense(X[:4])}, 2),
        FeatureDesign({"c": Dense(X)}, 3),
        features(),
        "no design",
    ):
        with pytest.raises(ShapeError):
            design | other


class Broken(Design):
    def __init__(self, answer):
        super().__init__({"a": (3,)}, 2, 1, torch.float64)
        self.answer = answer

    def _apply(self, coefficients):
        return self.answer

    def _adjoint(self, outputs):
        return {"a": self.answer}


@pytest.mark.parametrize("answer", [normal(3, 1), normal(2), normal(2, 1, dtype=torch.float32)])
def test_an_implementation_that_gives_a_wrong_shape_or_dtype_is_told(answer):
    with pytest.raises(ShapeError, match="Broken"):
        Broken(answer).apply({"a": normal(3)})
    with pytest.raises(ShapeError, match="Broken"):
        Broken(answer).adjoint(normal(2, 1))


def test_blocks_that_do_not_fit_are_named_and_no_others():
    shapes = {f"layer{i}": (i + 1,) for i in range(40)}
    point = Blocks({name: normal(*shape) for name, shape in shapes.items()})
    odd = Blocks({**point, "layer7": normal(9)})
    with pytest.raises(ShapeError, match=r"expected layer7 \(8,\); got layer7 \(9,\)"):
        point + odd
    few = Blocks({name: value for name, value in point.items() if name not in ("layer3", "layer4")})
    with pytest.raises(ShapeError, match="expected layer3, layer4; got none of these"):
        few.ordered(list(point))
    with pytest.raises(ShapeError, match="expected none of these; got layer3, layer4"):
        point.ordered(list(few))
    with pytest.raises(ShapeError, match="expected the order layer0, layer1, layer2; got the order layer39"):
        point + point.ordered(list(point)[::-1])
    with pytest.raises(ShapeError) as refused:
        Blocks({name: normal(50) for name in shapes}) + point
    assert "and 37 more" in str(refused.value)
    assert len(str(refused.value)) < 200
    two = features()
    (name, *_) = two.shapes
    with pytest.raises(ShapeError, match=f"got {name} "):
        two.apply({key: normal(*shape, 2) if key == name else normal(*shape) for key, shape in two.shapes.items()})


@pytest.mark.parametrize("prior", [{"a": float("nan")}, {"a": -1.0}, {"z": 1.0}, float("inf"), -0.5])
def test_a_wrong_prior_is_refused(prior):
    with pytest.raises(ShapeError):
        features().scaled(prior)
    with pytest.raises(ShapeError):
        features().gram(prior)


def test_a_prior_may_be_told_by_patterns():
    shapes = {"top.0.weight": (2,), "top.0.bias": (1,), "low[1]": (3,), "rest": (1,)}
    rows = {name: normal(4, *shape) for name, shape in shapes.items()}
    design = FeatureDesign({name: Dense(block) for name, block in rows.items()}, 1)
    prior = {"*": 0.5, "top.*": 2.0, "top.0.bias": 3.0, "low[1]": 4.0}
    deviations = {"top.0.weight": 2.0, "top.0.bias": 3.0, "low[1]": 4.0, "rest": 0.5}
    whole = torch.cat([deviations[name] * block for name, block in rows.items()], dim=1)
    torch.testing.assert_close(design.gram(prior).dense(), whole @ whole.T)
    named = deviations_of(design, {"top.*": 2.0})
    assert named == {"top.0.weight": 2.0, "top.0.bias": 2.0, "low[1]": 1.0, "rest": 1.0}
    assert deviations_of(design, {"top.0.bias": 3.0, "*": 0.5})["top.0.bias"] == 3.0  # its own name, whatever the order
    for idle in ({"mid.*": 1.0}, {"top.*": 2.0, "*": 0.0}, {"top.0.bias": 1.0, "top.*.bias": 2.0}):
        with pytest.raises(ShapeError, match=r"a prior; expected names among .* or patterns"):
            deviations_of(design, idle)


def test_a_design_needs_blocks_outputs_and_a_float_dtype():
    class Some(Jacobian):
        def __init__(self, *arguments):
            Design.__init__(self, *arguments)

    for arguments in (({}, 2, 1, torch.float64), ({"a": (2,)}, 2, 0, torch.float64), ({"a": (2,)}, 2, 1, torch.int64)):
        with pytest.raises(ShapeError):
            Some(*arguments)
