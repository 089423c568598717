"""From a model's name to a policy that samples, and log-probabilities with its weights."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trajgym.errors import CheckpointError, ConfigError
from trajgym.policies import tiny_path
from trajgym.policies.llm import LLMPolicy
from trajgym.policies.render import Renderer
from trajgym.trainers.batch import MicroBatch
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.placement import DeviceMap, check_placed, placing_arguments
from trajgym.trainers.quantization import loading_arguments, quiet
from trajgym.trainers.samplers import make_sampler
from trajgym.trainers.token_logprobs import token_logprobs

__all__ = [
    "Reference",
    "add_lora",
    "checkpoint_activations",
    "load_model",
    "load_weights",
    "make_policy",
    "pick_device",
    "reachable",
    "token_logprobs",
]

_PATIENCE = 10.0  # seconds for the hub's first answer


def pick_device(name: str) -> torch.device:
    """Return the device of that name; ``"auto"`` takes a GPU where there is one.

    Raises:
        ConfigError: When the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def load_model(
    name: str,
    *,
    dtype: str = "float32",
    device: torch.device | None = None,
    quantization: str = "none",
    device_map: DeviceMap | None = None,
    sampled: bool = True,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name: ``"tiny"`` for the embedded model, a folder in Hugging Face's format, or a hub id.
        dtype: ``"float32"`` or ``"bfloat16"``.
        device: Where to put the weights; the CPU when ``None``.
        quantization: ``"8bit"`` or ``"4bit"`` for a frozen model beneath adapters; ``"none"``.
        device_map: Deals the layers to several devices in place of ``device``, see :mod:`trajgym.trainers.placement`.
        sampled: Whether a model that is dealt out is to write with our own engine.

    Returns:
        ``(model, tokenizer)``, the model in evaluation mode.

    Raises:
        ConfigError: When there is no such model, it cannot be read, bitsandbytes is missing, or the map does not fit.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    disable_progress_bars()  # both libraries draw their own between the lines of the log
    source = str(tiny_path()) if name == "tiny" else str(Path(name).expanduser()) if name.startswith("~") else name
    if source.startswith((".", "/")) and not Path(source).is_dir():
        raise ConfigError(f"model: there is no folder {source}. Give a folder, 'tiny', or a Hugging Face hub id.")
    numbers, place = getattr(torch, dtype), device or torch.device("cpu")
    arguments = loading_arguments(quantization, numbers, place)
    if device_map is not None:
        arguments |= placing_arguments(device_map, sampled=sampled)
    try:
        found = reachable(source)
        tokenizer = AutoTokenizer.from_pretrained(found)
        with quiet() if arguments else contextlib.nullcontext():
            model = AutoModelForCausalLM.from_pretrained(found, dtype=numbers, attn_implementation="sdpa", **arguments)
        if found != source:  # the cache's folder means nothing to others, who read it in what is saved
            model.name_or_path = model.config._name_or_path = source
    except Exception as error:  # the libraries below raise a dozen types; the user needs one
        kind = "folder" if Path(source).is_dir() else "no such folder here, so a hub id"
        kind += "" if device_map is None else f", device map {device_map!r:.80}"
        raise ConfigError(
            f"Cannot load model {name!r} ({kind}): {_first_line(error)} Allowed: 'tiny', a folder with config.json, "
            "weights and tokenizer, or a Hugging Face hub id that this machine can reach."
        ) from error
    if device_map is not None and sampled:
        check_placed(model)
    return (model if arguments else model.to(place)).eval(), tokenizer


def add_lora(model: Any, *, rank: int, alpha: int, targets: tuple[str, ...], seed: int) -> Any:
    """Return ``model`` with trainable low-rank adapters ``ΔW = (α/r)·BA``, everything else frozen.

    B starts at zero, so the adapted model starts as the model itself; A is drawn from ``seed``.

    Source: LoRA, arXiv 2106.09685.

    Raises:
        ConfigError: When the model has no layers of these names.
    """
    from peft import LoraConfig, get_peft_model

    names = {n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    missing = [t for t in targets if t not in names]
    if missing:
        raise ConfigError(f"lora_targets {missing} are not layers of this model. It has: {', '.join(sorted(names))}.")
    adapter = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that v6 will drop
        torch.manual_seed(seed)
        return get_peft_model(model, adapter)


def load_weights(model: Any, folder: Path, *, lora: bool) -> None:
    """Put a checkpoint's weights into ``model``.

    Args:
        model: Built as it was when the checkpoint was written.
        folder: The checkpoint's model folder.
        lora: Whether it holds adapters only.

    Raises:
        CheckpointError: When the weights do not fit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if lora:
            from peft import set_peft_model_state_dict

            result = set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
            unexpected = result.unexpected_keys
        else:
            weights: dict[str, Tensor] = {}
            for file in sorted(folder.glob("*.safetensors")):
                weights |= load_file(file)
            # Tied weights are stored once; everything else must be there.
            tied = set(getattr(model, "_tied_weights_keys", None) or ())
            result = model.load_state_dict(weights, strict=False)
            unexpected = list(result.unexpected_keys) + [k for k in result.missing_keys if k not in tied]
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"The weights in {folder} cannot be loaded: {_first_line(error)}") from error
    if unexpected:
        raise CheckpointError(f"The weights in {folder} do not fit the model: {', '.join(unexpected[:5])}, …")


def make_policy(model: Any, tokenizer: Any, config: GRPOConfig, *, training: bool = False) -> LLMPolicy:
    """Return the policy that samples from ``model`` as the options say.

    Args:
        model: Its weights.
        tokenizer: Belongs to it.
        config: All options.
        training: Whether it plays the episodes of a run, with the engine that ``config.sampler`` names. What measures
            a model samples from that very model, whatever the run used.

    Raises:
        ConfigError: When the engine cannot be had, or cannot take this model.
    """
    ends = model.generation_config.eos_token_id
    stop_ids = ends if isinstance(ends, list) else [] if ends is None else [ends]
    renderer = Renderer(tokenizer, thinking=config.thinking, stop_ids=stop_ids)
    chosen = config if training else config.model_copy(update={"sampler": "hf", "sampler_options": {}})
    sampler = make_sampler(model, tokenizer, chosen, stop_ids=renderer.stop_ids)
    return LLMPolicy(
        sampler,
        renderer,
        max_turn_tokens=config.max_turn_tokens,
        max_episode_tokens=config.max_episode_tokens,
        protocol_mismatch=config.protocol_mismatch,
    )


def checkpoint_activations(model: Any) -> None:
    """Recompute activations in the backward pass instead of keeping them.

    transformers does so in training mode only, where dropout would act too: then the trained policy would not be the
    sampled one, so every dropout is set to 0.
    """
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


class Reference:
    """The frozen policy that the KL is measured against.

    With adapters it is the same model with the adapters off, and costs no memory; otherwise a copy.

    Args:
        model: The policy at the start of the run.
        lora: Whether the policy trains adapters only.
    """

    def __init__(self, model: Any, *, lora: bool) -> None:
        self._lora = lora
        self._model = model
        if not lora:
            import copy

            self._model = copy.deepcopy(model).eval()
            self._model.requires_grad_(False)

    @property
    def model(self) -> Any:
        """Whose weights it uses; with adapters, the policy's own."""
        return self._model

    @contextlib.contextmanager
    def active(self) -> Iterator[Any]:
        """Give the reference model for the length of the block."""
        with self._model.disable_adapter() if self._lora else contextlib.nullcontext():
            yield self._model

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Return log π_ref of each policy token. Shape: (N,)."""
        with self.active() as model:
            return token_logprobs(model, batch, temperature, False)[0]


def reachable(name: str) -> str:
    """Return a folder or a hub id as it is; where the hub cannot be reached, the folder that the cache has of it.

    Args:
        name: A folder, or a hub id.

    Raises:
        OSError: When the hub cannot be reached, and the cache does not have the model.
    """
    return name if Path(name).is_dir() or _on_hub(name) else _cached(name)


def _on_hub(name: str) -> bool:
    """Whether the hub can be asked about a model.

    Where it cannot, transformers would try for most of a minute, also for what is in the cache.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_PATIENCE)
    except (HfHubHTTPError, ValueError):  # an answer, or a name that is none: the libraries say what is wrong
        return True
    except Exception:  # of the HTTP library, whichever it is
        return False
    return True


def _cached(name: str) -> str:
    """Return the folder of a hub's model that was used before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return str(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise OSError("The hub cannot be reached, and the cache does not have the model.") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if line.endswith(".") else line + "."
