"""Torch's operations that take the same steps for every record, and whole numbers that index.

A server chooses θ. Where an operation raises on values, or takes as many steps as they
need, it can choose a θ at which the records with some property alone take longer, and
see it by when the upload begins. So a model and its loss are recorded, forward and
backward, and what becomes of a record's numbers and θ together is followed: it may pass
through the operations of ``SAME_STEPS`` alone, and index a table only after a clamp to
the table's size. What is made of records alone raises before enrolment or never; what
is made of θ alone does so for every data set.
"""

from collections.abc import Iterator
from traceback import FrameSummary
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_Operation = Any
"""One of ATen's operations; torch has no public type for it."""
_Given = Any
"""What an operation is given or gives: tensors, numbers, None, and lists of them."""

RECORDS, MODEL = 1, 2
"""What a number comes of; 0 is a constant, and both may be added."""
_BOTH = RECORDS | MODEL

SAME_STEPS = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _cdist_backward _cdist_forward _conj
    _conj_physical _embedding_bag _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _fft_c2c _fft_c2r _fft_r2c
    _linalg_solve_ex _log_softmax _log_softmax_backward_data
    _native_batch_norm_legit _neg_view _pdist_backward _pdist_forward _prelu_kernel
    _prelu_kernel_backward _reshape_alias _reshape_copy _safe_softmax
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _softmax
    _softmax_backward_data _to_copy _trilinear _unsafe_index _unsafe_index_put
    _unsafe_view _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
    _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
    _weight_norm_interface _weight_norm_interface_backward abs acos acosh
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
    adaptive_max_pool3d_backward add addbmm addcdiv addcmul addmm addmv addr alias
    all amax amin aminmax angle any arange argmax argmin as_strided
    as_strided_scatter asin asinh atan atan2 atanh avg_pool1d avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm
    bucketize cat ceil celu clamp clamp_max clamp_min clone col2im complex
    constant_pad_nd convolution convolution_backward copy copysign cos cosh
    count_nonzero cummax cummin cumprod cumsum detach diag_embed diagonal
    diagonal_backward diagonal_scatter digamma div dot elu elu_backward embedding
    embedding_dense_backward empty empty_like empty_strided eq erf erfc erfinv exp
    exp2 expand expm1 eye fill flip floor floor_divide fmax fmin fmod frac full
    full_like gather ge gelu gelu_backward glu glu_backward grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward gt hardshrink
    hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
    hardswish_backward hardtanh hardtanh_backward heaviside huber_loss
    huber_loss_backward hypot im2col index index_add index_copy index_fill index_put
    index_select isfinite isinf isnan le leaky_relu leaky_relu_backward lerp lgamma
    lift lift_fresh linalg_cholesky_ex linalg_cross linalg_householder_product
    linalg_inv_ex linalg_ldl_factor_ex linalg_lu_factor_ex linalg_qr
    linalg_solve_triangular linalg_vector_norm log log10 log1p log2
    log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logcumsumexp
    logical_and logical_not logical_or logical_xor logit logit_backward logsumexp lt
    masked_fill max max_pool2d_with_indices max_pool2d_with_indices_backward
    max_pool3d_with_indices max_pool3d_with_indices_backward maximum mean min
    minimum mish mish_backward mkldnn_convolution mkldnn_linear mkldnn_rnn_layer
    mkldnn_rnn_layer_backward mm mse_loss mse_loss_backward mul multi_margin_loss
    multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward mv nan_to_num nansum native_batch_norm
    native_batch_norm_backward native_channel_shuffle native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward ne neg
    new_empty new_empty_strided new_full new_ones new_zeros nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward ones ones_like permute
    polar polygamma pow prod reciprocal reflection_pad1d reflection_pad1d_backward
    reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward relu remainder repeat replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward
    replication_pad3d replication_pad3d_backward resolve_conj roll round rsqrt rsub
    scalar_tensor scatter scatter_add scatter_reduce searchsorted select
    select_backward select_scatter sgn sigmoid sigmoid_backward sign signbit silu
    silu_backward sin sinc sinh slice slice_backward slice_scatter smooth_l1_loss
    smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus
    softplus_backward softshrink softshrink_backward sort special_entr special_i0e
    special_log_ndtr special_ndtri special_xlog1py split split_with_sizes sqrt
    squeeze stack std std_mean sub sum take tan tanh tanh_backward threshold
    threshold_backward topk transpose triangular_solve tril triu trunc unbind unfold
    unfold_backward unsafe_split unsafe_split_with_sizes unsqueeze
    upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
    upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
    upsample_trilinear3d upsample_trilinear3d_backward var var_mean view
    view_as_complex view_as_real where xlogy zeros zeros_like
    """.split()  # noqa: SIM905
)
"""ATen's names, in place or not: none raises on values, or has a loop whose length they
decide. A sort's and a search's comparisons differ by values within a small factor."""

_MONOTONE = frozenset(
    """
    _to_copy add ceil clamp clamp_max clamp_min div floor maximum minimum mul nan_to_num
    neg relu round sub trunc
    """.split()  # noqa: SIM905
)
"""Their extremes lie where each operand is at one of its own."""
_SAME_NUMBERS = frozenset(
    """
    _reshape_copy _unsafe_index _unsafe_view cat clone flip gather index index_select
    repeat roll stack where
    """.split()  # noqa: SIM905
)
"""Their result's numbers are their operands'."""
_PLACES = frozenset(
    ("argmax", "argmin", "cummax", "cummin", "max", "min", "sort", "topk")
)
"""The whole numbers that they give are places along a dimension."""
_DIVISIONS = frozenset(("div", "floor_divide", "fmod", "remainder"))
_ANY_PLACE = frozenset(
    """
    _embedding_bag _embedding_bag_forward_only multi_margin_loss
    multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward nll_loss2d_backward nll_loss2d_forward
    nll_loss_backward nll_loss_forward
    """.split()  # noqa: SIM905
)
"""Whole numbers among their operands are places, of classes or rows. A bag's way back
has those of the way forward."""

_CLAMP = (
    "clamp the whole number itself to the table's rows, index.clamp(0, rows - 1), after"
    " .long(): what a real number was bounded to says nothing of NaN and of rounding"
)
_REAL = "divide real numbers, or by what is clamped to 1 and more and made real"
_INDEXES = (
    "takes a whole number that comes of the model's and a record's numbers, and raises"
    " an IndexError, or reads another row, where there is no such row"
)
_NOT_LISTED = (
    "isn't known to take the same steps for every record",
    (
        "write it by operations that docs/own-model.md lists, or let the task say"
        " training.any_operations = true"
    ),
)
_LINEAR = (
    "raises for some matrices",
    (
        "use torch.linalg's inv_ex, solve_ex or cholesky_ex: a record with none then"
        " counts as zero"
    ),
)
_STEPS = (
    "takes as many steps as the values need, or raises",
    "use an operation without a decomposition",
)
_DECIDES = (
    "decides by values",
    "write it with torch.where, or give validate_args=False to torch.distributions",
)
_SIZES = (
    "has as many results as the values say",
    "use an operation whose size is fixed, such as a comparison",
)
_WHY_NOT = {
    "binary_cross_entropy": (
        "raises where an output isn't from 0 to 1, NaN too",
        (
            "use binary_cross_entropy_with_logits (nn.BCEWithLogitsLoss), and no"
            " sigmoid before it"
        ),
    ),
    **dict.fromkeys(("_linalg_check_errors", "_linalg_det", "linalg_pinv"), _LINEAR),
    **dict.fromkeys(
        ("_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_lstsq"), _STEPS
    ),
    **dict.fromkeys(("_is_all_true", "_is_any_true"), _DECIDES),
    **dict.fromkeys(("bincount", "repeat_interleave"), _SIZES),
}
"""What operations that aren't taken do, and the remedy, where more is known. What takes
a value into Python isn't here: vmap refuses it."""


class NotTaken(Exception):
    """An operation that isn't taken: its name, what it does, and the remedy.

    ``forward`` is where the operation stands whose way back this is; empty on the way
    forward.
    """

    def __init__(self, name: str, does: str, remedy: str) -> None:
        super().__init__(f"torch's {name}", does, remedy)
        self.forward = _lines_of_forward()


def _lines_of_forward() -> list[FrameSummary]:
    """Return the frames of the operation whose gradient is computed just now.

    Autograd keeps them in its anomaly mode alone.
    """
    node: Any = torch._C._current_autograd_node()  # noqa: SLF001
    kept = [] if node is None else node.metadata.get("traceback_", [])
    frames = []
    for entry in kept:
        place, _, code = entry.strip().partition("\n")
        _, file, rest = place.split('"')
        line = int(rest.split(",")[1].removeprefix(" line "))
        frames.append(FrameSummary(file, line, "", line=code.strip()))
    return frames


class ForeignTokens(TorchFunctionMode):
    """Makes the rows NaN that a token outside its table would be given.

    Batched, torch numbers the rows of all slots' tables through, so such a token would
    train the next slot's copy: one record would move another one's gradient.
    """

    def __torch_function__(
        self,
        func: _Given,
        types: _Given,
        args: _Given = (),
        kwargs: _Given = None,
    ) -> _Given:
        options = kwargs or {}
        if func is not functional.embedding:
            return func(*args, **options)
        tokens, table, *rest = args
        foreign = (tokens < 0) | (tokens >= table.shape[0])
        rows = func(torch.where(foreign, 0, tokens), table, *rest, **options)
        return torch.where(foreign.unsqueeze(-1), torch.nan, rows)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees each of torch's operations below vmap and grad, those of the way back too.

    Of ``records`` and ``model``, tensors, come the records' numbers and θ. Whole
    numbers are followed with the least and the largest that they can be.

    Raises NotTaken: an operation on numbers that come of both isn't of ``SAME_STEPS``,
    or a whole number that does may lie outside the table that it indexes.
    """

    def __init__(self, records: list[Tensor], model: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A weak reference keeps a storage's address from being another's later.
        self._origins: dict[StorageWeakRef, int] = {}
        self._extremes: dict[StorageWeakRef, Tensor] = {}
        for tensor in records:
            self._origins[_storage(tensor)] = RECORDS
        for tensor in model:
            self._origins[_storage(tensor)] = MODEL

    def __torch_dispatch__(
        self,
        operation: _Operation,
        _: Any,
        arguments: _Given = (),
        options: Any = None,
    ) -> Any:
        """Run one operation for torch, and follow what its result comes of."""
        options = options or {}
        name = operation.overloadpacket.__name__
        mutates = operation._schema.is_mutable  # noqa: SLF001
        name = name.removesuffix("_") if mutates else name
        given = _by_name(operation, arguments, options)
        origin = 0
        for tensor in _tensors(given):
            origin |= self._origin(tensor)
        if origin == _BOTH and not (
            name in SAME_STEPS and operation.namespace == "aten"
        ):
            raise NotTaken(name, *_WHY_NOT.get(name, _NOT_LISTED))
        if origin & MODEL:
            self._check_whole_numbers(name, given)
        extremes = None
        if origin and not mutates and not operation.is_view:
            extremes = self._extremes_of(operation, arguments, options)
        result = operation(*arguments, **options)
        for made in _tensors(result) if origin else ():
            place = _storage(made)
            self._origins[place] = self._origins.get(place, 0) | origin
            if operation.is_view:
                continue
            self._extremes.pop(place, None)
            if made.dtype == torch.bool:
                self._extremes[place] = torch.tensor([False, True])
            elif extremes is not None and extremes.dtype == made.dtype:
                self._extremes[place] = extremes
        return result

    def _origin(self, tensor: Tensor) -> int:
        return self._origins.get(_storage(tensor), 0)

    def _check_whole_numbers(self, name: str, given: dict[str, _Given]) -> None:
        """Raise NotTaken where one that comes of θ may be no row, or a divisor of 0."""
        for index, rows in _looked_up(name, given):
            if self._origin(index) & MODEL:
                extremes = self._extremes_in(index)
                if not (extremes.min() >= 0 and extremes.max() < rows):
                    raise NotTaken(name, _INDEXES, _CLAMP)
        divisor = given.get("other")
        if (
            name in _DIVISIONS
            and isinstance(divisor, Tensor)
            and self._origin(divisor) & MODEL
            and not any(each.is_floating_point() for each in _tensors(given))
        ):
            raise NotTaken(name, "raises where a whole number is divided by 0", _REAL)

    def _extremes_in(self, tensor: Tensor) -> Tensor:
        """Return numbers of the tensor's type between which all of its numbers lie.

        A constant's are its own; NaN is one of them where there may be NaN.
        """
        if self._origin(tensor):
            # A view may read the same bytes as another type.
            known = self._extremes.get(_storage(tensor))
            if known is not None and known.dtype == tensor.dtype:
                return known
            return _every(tensor.dtype)
        if not tensor.numel() or tensor.is_complex():
            return _every(tensor.dtype)
        return _bounded(torch.stack([tensor.min(), tensor.max()]))

    def _extremes_of(
        self, operation: _Operation, arguments: _Given, options: dict[str, _Given]
    ) -> Tensor | None:
        """Return numbers between which all of an operation's results lie, as above.

        None where nothing is known of them.
        """
        name = operation.overloadpacket.__name__
        around = [self._extremes_in(each) for each in _tensors(arguments)]
        if name in _PLACES:
            given = _by_name(operation, arguments, options)
            dim = given.get("dim")
            table = given["self"]
            if not table.is_floating_point():
                return None  # The values would be whole numbers, too
            rows = table.numel() if dim is None or not table.ndim else table.shape[dim]
            return torch.tensor([0, max(rows, 1) - 1])
        if any(each.is_complex() for each in around):
            return None
        if name in _SAME_NUMBERS:
            dtype = around[-1].dtype
            return _bounded(torch.cat([each for each in around if each.dtype == dtype]))
        if name not in _MONOTONE or _tensors(options):
            return None
        if name == "div" and isinstance(arguments[1], Tensor):
            divisors = around[-1]
            if divisors.min() != divisors.max():
                return None

        def run(others: list[Tensor]) -> Tensor:
            """Run the operation on other tensors."""
            tensors = iter(others)
            replaced = [
                next(tensors) if isinstance(each, Tensor) else each
                for each in arguments
            ]
            found: Tensor = operation(*replaced, **options)
            return found

        # Each operand has an axis of its own, so that all corners are computed.
        corners = [
            each.reshape([-1 if place == axis else 1 for place in range(len(around))])
            for axis, each in enumerate(around)
        ]
        found = run(corners)
        if not found.is_floating_point():
            # What wraps around, or is no whole number, isn't bounded.
            real = [each.double() for each in corners]
            exact = real[0] if name == "_to_copy" else run(real)
            if not torch.equal(found.double(), exact.trunc()):
                return None
        return _bounded(found.flatten())


def _every(dtype: torch.dtype) -> Tensor:
    """Return the extremes of a type, with NaN where it has one."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        if dtype.is_complex:
            return torch.zeros(1, dtype=dtype)
        whole = torch.iinfo(dtype)
        return torch.tensor([whole.min, whole.max], dtype=dtype)
    real = torch.finfo(dtype)
    every = [-torch.inf, real.min, real.max, torch.inf, torch.nan]
    return torch.tensor(every, dtype=dtype)


def _bounded(numbers: Tensor) -> Tensor:
    """Return the least and the largest, and NaN if it is among them.

    Beside an infinity any number may be, and NaN too.
    """
    missing = numbers.isnan()
    if numbers.isinf().any() or missing.all():
        return _every(numbers.dtype)
    present = numbers[~missing]
    return torch.cat(
        [torch.stack([present.min(), present.max()]), numbers[missing][:1]]
    )


def _looked_up(name: str, given: dict[str, _Given]) -> Iterator[tuple[Tensor, int]]:
    """Yield each tensor of places, and how many there are; 0 where that isn't known."""
    table: Any = given.get("self", given.get("weight"))
    index: Any = given.get("index")
    match name:
        case "index" | "index_put" | "_unsafe_index" | "_unsafe_index_put":
            pairs = zip(given["indices"], table.shape, strict=False)
            yield from ((each, rows) for each, rows in pairs if each is not None)
        case "take":
            yield index, table.numel()
        case "embedding":
            yield given["indices"], table.shape[0]
        case "embedding_dense_backward":
            yield given["indices"], given["num_weights"]
        case _ if isinstance(index, Tensor):
            yield index, table.shape[given["dim"]] if table.ndim else 1
        case _ if name in _ANY_PLACE:
            for each in _tensors(given):
                if not each.is_floating_point():
                    yield each, 0


def _by_name(
    operation: _Operation, arguments: _Given, options: dict[str, _Given]
) -> dict[str, _Given]:
    """Return what an operation is given, as its schema names it."""
    takes = operation._schema.arguments  # noqa: SLF001
    defaults = {each.name: each.default_value for each in takes}
    return defaults | dict(zip(defaults, arguments, strict=False)) | options


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _tensors(tree: _Given) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
