"""A gate behind a module of somebody else's network: a forward hook applies it, the module itself stays as it is."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fheat.ops.heat import FractionalHeat

AxisOrder = Literal["channels_first", "channels_last", "tokens", "tokens_first"]
"""(N, C, *grid), (N, *grid, C), (N, T, C), (T, N, C); the leading N may be missing."""
LAYOUTS = get_args(AxisOrder)
GridLengths = Sequence[int] | Callable[[int], Sequence[int]]
"""The grid that tokens lie on in row-major order, or a function from the number of tokens to that grid."""


@dataclass(frozen=True)
class GateHook:
    """Passes the output of a module, or the first element of a tuple, through the gate the module carries.

    The gate is looked up on the module the hook is called with, so that copies use their own. It sees (N, C, *grid)
    whatever the layout is, and the result has the strides of the output. Identity case: a closed gate gives the output
    bit for bit, and a gate that hands on its input leaves the very tensor.
    """

    site: str
    child: str
    layout: AxisOrder
    dims: int
    grid: GridLengths | None = None
    prefix_tokens: int = 0

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Return the output with the gate applied."""
        value = self.gated_part(output)
        seen = self.on_grid(value)
        mixed = getattr(module, self.child)(seen)
        if mixed is seen:
            return output
        result = self._back(mixed, value)
        if result.stride() != value.stride():  # code behind the site may rely on view(), and products on the strides
            result = torch.empty_like(value).copy_(result)
        if not isinstance(output, tuple):
            return result
        rest = (result, *output[1:])
        return type(output)._make(rest) if hasattr(output, "_make") else rest

    def gated_part(self, output: Any) -> Tensor:
        """Return the tensor the gate acts on, or raise ValueError where there is none."""
        value = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(value, Tensor):
            raise ValueError(f"{self.site!r} gives a {type(value).__name__} and a gate needs a tensor")
        if value.is_nested:
            raise ValueError(f"{self.site!r} gives a nested tensor, which has no grid: use enable_nested_tensor=False")
        if not value.is_floating_point():
            raise ValueError(f"{self.site!r} gives {value.dtype} and a gate needs a floating tensor")
        return value

    def on_grid(self, x: Tensor) -> Tensor:
        """Return a view of the output of shape (N, C, *grid), without the prefix tokens."""
        spatial = 1 if self._tokens else self.dims
        if x.ndim not in (spatial + 1, spatial + 2):
            raise ValueError(
                f"{self.site!r} gives {x.ndim} axes, shape {tuple(x.shape)}: layout {self.layout!r} with "
                f"{self.dims} dims does not fit"
            )
        if not self._tokens:
            return x if self.layout == "channels_first" else x.movedim(-1, -1 - self.dims)
        body = x.narrow(self._axis, self.prefix_tokens, x.shape[self._axis] - self._prefix(x))
        by_token = body.movedim(self._axis, -1)
        return by_token.reshape(*by_token.shape[:-1], *self._grid(by_token.shape[-1]))

    def _back(self, y: Tensor, x: Tensor) -> Tensor:
        """Undo `on_grid`: from (N, C, *grid) to the layout of the output `x`, with its prefix tokens."""
        if self.layout == "channels_first":
            return y
        if self.layout == "channels_last":
            return y.movedim(-1 - self.dims, -1)
        tokens = y.flatten(-self.dims).movedim(-1, self._axis)
        if not self.prefix_tokens:
            return tokens
        return torch.cat([x.narrow(self._axis, 0, self.prefix_tokens), tokens], dim=self._axis)

    @property
    def _tokens(self) -> bool:
        return self.layout in ("tokens", "tokens_first")

    @property
    def _axis(self) -> int:
        """The axis of the tokens, the same with and without a batch."""
        return 0 if self.layout == "tokens_first" else -2

    def _prefix(self, x: Tensor) -> int:
        tokens = x.shape[self._axis]
        if tokens <= self.prefix_tokens:
            raise ValueError(f"{self.site!r} gives {tokens} tokens and prefix_tokens={self.prefix_tokens} leaves none")
        return self.prefix_tokens

    def _grid(self, tokens: int) -> tuple[int, ...]:
        assert self.grid is not None
        grid = grid_of(tokens, self.grid, self.site)
        cells = torch.Size(grid).numel()
        if len(grid) != self.dims or cells != tokens:
            more = self.prefix_tokens + tokens - cells
            hint = f": prefix_tokens={more} would leave the first out" if tokens > cells else ""
            raise ValueError(f"{self.site!r} gives {tokens} tokens, grid {grid} has {cells} cells{hint}")
        return grid


def grid_of(tokens: int, grid: GridLengths, site: str) -> tuple[int, ...]:
    """Return the grid of so many tokens as it was given, or raise ValueError where that is none."""
    try:
        answer = grid(tokens) if callable(grid) else grid
        lengths = tuple(map(operator.index, answer))
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"grid of {site!r} fails for {tokens} tokens: {reason}") from error
    if not 1 <= len(lengths) <= 3 or min(lengths) < 1:
        raise ValueError(f"grid of {site!r} is {lengths}: give one to three whole numbers of at least 1")
    return lengths


def attach(module: nn.Module, gate: FractionalHeat, hook: GateHook) -> None:
    """Give the module the gate as a child and the hook that applies it."""
    module.add_module(hook.child, gate)
    module.register_forward_hook(hook)


def gate_hooks(module: nn.Module) -> dict[int, GateHook]:
    """Return the gate hooks of one module by their key in it."""
    return {key: hook for key, hook in module._forward_hooks.items() if isinstance(hook, GateHook)}


def detach(model: nn.Module, gate: FractionalHeat) -> bool:
    """Remove the hook that applies this gate, in place; the gate stays as a child. Returns whether there was one."""
    for module in model.modules():
        for key, hook in gate_hooks(module).items():
            if getattr(module, hook.child, None) is gate:
                del module._forward_hooks[key]
                return True
    return False
