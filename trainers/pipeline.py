"""The whole chain: data → SFT → evaluation → GRPO → evaluation → deployment, in one run folder, and resumable.

Each stage is a method and leaves a record of what went into it and what came of it. A stage that is done, and into
which nothing else would go now, is not done again; one that was stopped goes on inside. Between the first evaluation
and GRPO stands a gate: reinforcement learning only sharpens what a model can sometimes do already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from trajgym.errors import ConfigError, TrajgymError
from trajgym.evaluation.compare import compare_all
from trajgym.evaluation.report import Report, Result, as_json, write_report
from trajgym.trainers.compat_monitor import wandb_project
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.interrupt import Interrupted
from trajgym.trainers.pipeline_checks import check_grpo
from trajgym.trainers.pipeline_config import PipelineConfig, load_pipeline_config
from trajgym.trainers.pipeline_decision import clearly
from trajgym.trainers.pipeline_evaluation import Arena, model_fingerprint, recalled
from trajgym.trainers.pipeline_folders import attempt, check_apart, require_own, run_folder
from trajgym.trainers.pipeline_history import remember
from trajgym.trainers.pipeline_problems import Problems, drawn_by_grpo, find_problems
from trajgym.trainers.pipeline_results import collect_results, write_results
from trajgym.trainers.pipeline_stages import Run, continued, run_grpo, run_sft, significant, weights_of
from trajgym.trainers.pipeline_state import PipelineFolder, StageRecord, differences, stage_records, write_text
from trajgym.trainers.sft_config import SFTConfig

__all__ = ["STAGES", "AgenticRLPipeline", "GateNotMet"]

STAGES: Mapping[str, str] = {
    "data": "Data",
    "sft": "Supervised fine-tuning",
    "sft_evaluation": "Evaluation before RL",
    "grpo": "GRPO",
    "grpo_evaluation": "Evaluation after RL",
    "deployment": "Deployment",
}
"""The stages in their order, with their titles."""


class GateNotMet(TrajgymError):
    """The model is not good enough for reinforcement learning; the message says what to do.

    Args:
        message: In words.
        accuracy: What was measured, in [0, 1].
        threshold: What was asked for.
    """

    def __init__(self, message: str, accuracy: float, threshold: float) -> None:
        super().__init__(message)
        self.accuracy, self.threshold = accuracy, threshold

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self), self.accuracy, self.threshold))


class AgenticRLPipeline:
    """The stages of one run, one method each; :meth:`run` calls them in order.

    Args:
        config: The options, a recipe's name, a YAML or JSON file, or the values themselves.
        name: Begins the name of the run folder when the options give none; usually the recipe's.

    Raises:
        ConfigError: For an option that is wrong, in any stage: all are read before the first begins. Also when a
            stage's ``output_dir`` holds what this pipeline has not made there, and ``overwrite`` is not set.
        DataError: When there are no problems to train or to measure on.
        TemplateError: When the model's chat template is missing or cannot be followed.
        CheckpointError: When the run folder is damaged.
    """

    def __init__(self, config: PipelineConfig | str | Path | Mapping[str, Any], *, name: str = "pipeline") -> None:
        if not isinstance(config, PipelineConfig):
            if isinstance(config, (str, Path)) and name == "pipeline":
                name = Path(config).stem
            config = load_pipeline_config(config)
        self.config = config
        path = config.output_dir.expanduser() / (config.name or f"{name}-seed{config.seed}")
        if path.name in ("", ".", "..") or (config.name and Path(config.name).name != config.name):
            raise ConfigError(f"name must be the name of one folder inside output_dir, got {config.name!r}.")
        self.sft_options = None if config.sft is None else config.sft_config(path)
        self.problems: Problems = find_problems(config, self.sft_options)
        finite = self.problems.available is not None
        self.grpo_options: GRPOConfig = config.grpo_config(path, config.model.base_model, finite=finite)
        self.base = model_fingerprint(config.model.base_model)
        self._trainings: dict[str, SFTConfig | GRPOConfig] = {"grpo": self.grpo_options}
        if self.sft_options is not None:
            self._trainings["sft"] = self.sft_options
        check_apart(path, self._trainings)
        check_grpo(self.grpo_options)
        records = {} if config.overwrite else stage_records(path)
        for stage in self._trainings:
            self._require_own(stage, path, records.get(stage))
        self.folder = PipelineFolder(path, overwrite=config.overwrite)
        write_text(path / "config.yaml", config.dump())

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    def run(self) -> Path:
        """Go through all stages and return the run folder.

        Raises:
            GateNotMet: When the model is not good enough for GRPO; results and summary are written first.
            TrajgymError: Whatever a stage raises. The same call goes on from there.
            Interrupted: After Ctrl-C, likewise.
        """
        try:
            self.stage1_prepare_data()
            if self.sft_options is not None:
                self.stage2_sft_training()
            self.stage3_sft_evaluation()
            self.stage4_grpo_training()
            self.stage5_grpo_evaluation()
            self.stage6_deployment()
        except GateNotMet as error:
            self._conclude(stopped=str(error))
            raise
        except KeyboardInterrupt as stop:
            where = str(stop).partition(" Go on with")[0] or "Stopped."
            raise Interrupted(
                f"{where} What is done is kept in {self.path}; the same command without --overwrite goes on."
            ) from stop
        self._conclude()
        return self.path

    def stage1_prepare_data(self) -> dict[str, Any]:
        """Check the problems, and that none is both trained and measured on."""
        problems, grpo = self.problems, self.grpo_options
        drawn = None  # what decides which problems GRPO will make up
        if problems.available is None:
            drawn = [grpo.updates, grpo.groups_per_update, grpo.dynamic_sampling]

        def work(_: bool) -> dict[str, Any]:
            found = problems.check(drawn_by_grpo(grpo))
            write_text(self.path / "data.json", json.dumps(found, indent=1) + "\n")
            return found

        inputs = {"data": self._section("data"), **problems.fingerprints, "rows": problems.row_count, "drawn": drawn}
        return self._stage("data", inputs, work)

    def stage2_sft_training(self) -> dict[str, Any]:
        """Imitate demonstrations."""
        options = self.sft_options
        if options is None:
            raise ConfigError("sft is null, so there is no SFT stage. Give it options, or {} for the defaults.")
        self._require("data")
        known = self.problems.fingerprints
        inputs = {"model": self.base, "train": known["train"], "imitated": known["imitated"]}
        return self._stage(
            "sft",
            {**inputs, "options": significant(options)},
            lambda go_on: run_sft(self._begun("sft", options, go_on)),
        )

    def stage3_sft_evaluation(self) -> dict[str, Any]:
        """Measure the model that GRPO would start from, and the base model before it."""
        self._require("data")
        models = {"before": self.config.model.base_model} if self.config.eval.baseline or not self.sft_options else {}
        models |= {"sft": self._require("sft")["model"]} if self.sft_options is not None else {}
        return self._evaluation("sft_evaluation", models, {})

    def stage4_grpo_training(self) -> dict[str, Any]:
        """Train on trajectories with the reward of every step, if the gate is met.

        Raises:
            GateNotMet: When the model is not good enough.
            ConfigError: When an earlier stage is missing: RL without SFT is refused unless the options ask for it.
        """
        if self.sft_options is None:
            self._say(
                "! No SFT stage: GRPO starts from the base model. It learns from right answers alone, so it needs a "
                "model that gives some, in a form that can be read."
            )
            start, weights = self.config.model.base_model, self.base
        else:
            result = self._require("sft")
            start, weights = result["model"], result["weights"]
        self._gate()
        options = self.grpo_options.model_copy(update={"model": start})
        inputs = {"model": weights, "train": self.problems.fingerprints["train"], "options": significant(options)}
        return self._stage("grpo", inputs, lambda go_on: run_grpo(self._begun("grpo", options, go_on)))

    def stage5_grpo_evaluation(self) -> dict[str, Any]:
        """Measure what GRPO has made of it, on the same problems."""
        earlier = self._require("sft_evaluation")["folders"]
        return self._evaluation("grpo_evaluation", {"grpo": self._require("grpo")["model"]}, earlier)

    def stage6_deployment(self) -> dict[str, Any]:
        """Write the model as a folder that anything can load, and say how to serve it."""
        from trajgym.trainers.export import export

        self._require("grpo_evaluation")
        chosen, why = self._choice()
        source = self._require(chosen)
        target, dtype = self.path / "model", self.config.deploy.dtype or self.config.model.dtype

        def work(_: bool) -> dict[str, Any]:
            done = export(source["model"], target, dtype=dtype, overwrite=target.exists())
            return {
                "chosen": chosen,
                "why": why,
                "model": str(done.folder),
                "serve": f"trajgym serve {done.folder}",
                "merge_difference": done.difference,
            }

        return self._stage("deployment", {"model": source["weights"], "dtype": dtype, "chosen": chosen}, work)

    @cached_property
    def _arena(self) -> Arena:
        return Arena(
            self.config.data.env,
            self.problems.arguments,
            self.problems.test,
            self.grpo_options,
            seed=self.config.seed,
        )

    def _evaluation(self, stage: str, models: Mapping[str, str], earlier: Mapping[str, str]) -> dict[str, Any]:
        """Play with each of ``models`` and write one report on these and the ``earlier`` ones."""
        arena = self._arena
        place = self.path / "evaluation" / stage
        options = arena.options
        inputs = {
            "models": {name: model_fingerprint(model) for name, model in models.items()},
            "earlier": {name: (self.folder.records[where].inputs["models"][name]) for name, where in earlier.items()},
            "test": self.problems.fingerprints["test"],
            "env": arena.env,
            "arguments": dict(arena.arguments),
            "max_turn_tokens": options.max_turn_tokens,
            "max_episode_tokens": options.max_episode_tokens,
        }

        def work(_: bool) -> dict[str, Any]:
            results: list[Result] = []
            for name, where in earlier.items():
                known = self._require(where)
                results.append(recalled(name, Path(known["report"]).parent / known["places"][name]))
            for name, model in models.items():
                self._say(f"  {name}: {len(arena.tasks)} problems …")
                results.append(arena.play(name, model, place / name))
            settings = {"environment": arena.env, "problems": f"{len(arena.tasks)}, split {self.config.eval.split}"}
            comparisons = compare_all({result.name: result.samples for result in results}, seed=arena.seed)
            report = Report(f"{', '.join(r.name for r in results)} on {arena.env}", results, settings, comparisons)
            files = write_report(report, place)
            whole = json.loads(as_json(report))
            for result in results:
                self._say(f"  {result.name}: {100 * result.summary.accuracy:.1f} % right")
            return {
                "report": str(files[-1]),
                "places": {result.name: f"model-{i}" for i, result in enumerate(results, start=1)},
                "folders": {**earlier, **dict.fromkeys(models, stage)},
                "models": {row.pop("name"): row for row in whole["results"]},
                "comparisons": whole["comparisons"],
            }

        return self._stage(stage, inputs, work)

    def _gate(self) -> None:
        """Let nothing through that is not good enough."""
        found = self._require("sft_evaluation")
        name = "before" if self.sft_options is None else "sft"
        accuracy, threshold = found["models"][name]["measures"]["accuracy"], self.config.eval.sft_accuracy_threshold
        if accuracy["value"] >= threshold:
            self._say(f"Gate: {accuracy['value']:.1%} right, {threshold:.1%} asked for. GRPO may begin.")
            return
        unsure = " The interval reaches it: more problems, --eval.max-samples, would tell."
        raise GateNotMet(
            f"The gate before GRPO is not met: {accuracy['value']:.1%} of {accuracy['count']} problems are right "
            f"({accuracy['low']:.1%} … {accuracy['high']:.1%}), eval.sft_accuracy_threshold asks for {threshold:.1%}."
            f"{unsure if accuracy['high'] >= threshold else ''} Look at the errors in {found['report']}; then train "
            "SFT on more (--data.max-samples, --sft.epochs), take a larger base model, or, knowing that GRPO will see "
            "few right answers, lower --eval.sft-accuracy-threshold. The same command then goes on from here.",
            accuracy["value"],
            threshold,
        )

    def _choice(self) -> tuple[str, str]:
        """Return which model to deploy, and why."""
        asked = self.config.deploy.model
        if asked != "auto":
            return asked, f"deploy.model asks for {asked}."
        if self.sft_options is None:
            return "grpo", "It is the only model that was trained."
        found = self._require("grpo_evaluation")["comparisons"]
        (pair,) = [c for c in found if (c["before"], c["after"]) == ("sft", "grpo")]
        if clearly(pair) < 0:
            return "sft", "GRPO's model is clearly worse than SFT's, so SFT's is deployed."
        return "grpo", "GRPO's model is not clearly worse than SFT's."

    def _stage(self, name: str, inputs: Mapping[str, Any], work: Callable[[bool], dict[str, Any]]) -> dict[str, Any]:
        """Do a stage, go on with it, or keep what was done before."""
        now: dict[str, Any] = json.loads(json.dumps(inputs, default=repr))
        record, title = self.folder.record(name), STAGES[name]
        same = record is not None and record.inputs == now
        if record is not None and same and record.status == "done":
            if record.result.get("weights") == weights_of(record.result):
                self._say(f"{title}: done before, with nothing changed; kept.")
                return record.result
            self._say(f"{title}: its model is gone or changed, so it is done again.")
        elif record is not None and not same:
            self._say(f"{title}: done again, since {'; '.join(differences(record.inputs, now))}.")
        else:
            self._say(f"{title}{': goes on' if same else ''} …")
        spent = record.seconds if record is not None and same else 0.0
        made = {} if record is None else record.made
        current = self.folder.records[name] = StageRecord("running", now, seconds=spent, made=made)
        self.folder.save()
        start = time.monotonic()
        try:
            with wandb_project(self.config.monitoring.wandb_project):
                result = work(same)
        finally:
            current.seconds += time.monotonic() - start
            self.folder.save()
        current.result = {**result, "weights": weights_of(result)} if "model" in result else result
        current.status = "done"
        self.folder.save()
        self._say(f"{title}: done in {current.seconds:.0f} s.")
        return current.result

    def _begun(self, stage: str, options: Run, go_on: bool) -> Run:
        """Return the options to begin or to go on with, after a note of what is begun where."""
        record = self.folder.records[stage]
        self._require_own(stage, self.path, record)
        chosen = continued(options, go_on=go_on)
        attempts = record.made.setdefault(str(run_folder(chosen)), [])
        if (mark := attempt(chosen.plain())) not in attempts:
            attempts.append(mark)
            self.folder.save()
        return chosen

    def _require_own(self, stage: str, path: Path, record: StageRecord | None) -> None:
        """Raise when a training's folder holds what is not this pipeline's."""
        folder = run_folder(self._trainings[stage])
        if folder != path.absolute() / stage:  # what lies in the pipeline's own folder is its own
            made = {} if record is None else record.made
            require_own(folder, made, section=stage, overwrite=self.config.overwrite)

    def _require(self, stage: str) -> dict[str, Any]:
        """Return what came of an earlier stage."""
        record = self.folder.record(stage)
        if record is None or record.status != "done":
            missing = " RL without SFT mostly fails; sft: null asks for it all the same." if stage == "sft" else ""
            raise ConfigError(f"The stage {stage!r} is not done in {self.path}. Run the stages in order.{missing}")
        return record.result

    def _conclude(self, stopped: str = "") -> None:
        """Write the results, the summary, and a line of the history."""
        results = collect_results(self.config, self.folder, list(STAGES), stopped=stopped)
        files = write_results(results, self.path)
        remember(results, self.path.parent / "history.jsonl")
        self._say(f"Summary: {', '.join(str(file) for file in files)}")
        self._say(f"Next: {results['decision']['next']}")

    def _section(self, name: str) -> dict[str, Any]:
        section: dict[str, Any] = self.config.plain()[name]
        return section

    def _say(self, text: str) -> None:
        print(text, flush=True)
