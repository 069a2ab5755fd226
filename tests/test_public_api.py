"""The public names of `import gatf`, their signatures and defaults. `PUBLIC` changes only on purpose."""

import doctest
import inspect
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gatf
from gatf.errors import deprecated

PUBLIC: dict[str, str] = {
    "EmbeddingClassifier": "(*, method='slda', encoder=None, normalize='auto', held_out=0.1, unknown=None, "
    "unknown_label=None, random_state=0, settings=None, engine='local', verbose=0)",
    "IncrementalClassifier": "(*, method='gatf', backbone='auto', adapt=None, minutes=5.0, width='auto', "
    "feature_dim='auto', image_size='auto', augment='auto', epochs='auto', batch_size='auto', held_out=0.1, "
    "unknown=None, unknown_label=None, device='auto', random_state=0, settings=None, verbose=0)",
    "METHODS": "mapping",
    "Method": "class",
    "Scenario": "(source, order, task_sizes, train_tasks=None, test_tasks=None, domains=())",
    "UserError": "class",
    "geometry": "module",
    "load_config": "(recipe=None, *, method=None, overrides=None)",
    "results": "(*folders)",
    "resume": "(folder, listeners=(), *, backbone=None, force_config=False, overrides=None, networks_from=None, "
    "scenario=None)",
    "run": "(config, folder, listeners=(), *, backbone=None, networks_from=None, scenario=None)",
}

BOTH: dict[str, str] = {
    "answers": "(self, X, *, certificate=False)",
    "choose_strategy": "(self, images)",
    "decision_function": "(self, X)",
    "fit": "(self, X, y=None)",
    "forget": "(self, label, vectors=None)",
    "from_model": "(model, *, device='auto')",
    "from_pretrained": "(source, *, revision=None, device='auto', backbone=None)",
    "get_feature_names_out": "(self, input_features=None)",
    "get_params": "(self, deep=True)",
    "load": "(path, *, device='auto', backbone=None)",
    "merge": "(self, *others)",
    "partial_fit": "(self, X, y=None)",
    "predict": "(self, X, *, return_certificate=False)",
    "predict_log_proba": "(self, X)",
    "predict_proba": "(self, X)",
    "predictions": "(self, X, *, certificate=False)",
    "push_to_hub": "(self, target, *, private=False)",
    "save": "(self, path)",
    "set_params": "(self, **params)",
    "transform": "(self, X)",
}
"""Methods of both classifiers."""
METHODS_OF: dict[str, dict[str, str]] = {
    "IncrementalClassifier": BOTH | {"upgrade": "(self, images, backbone, labels=None)"},
    "EmbeddingClassifier": BOTH
    | {"updated": "(self, model, given, context)", "upgrade": "(self, old, new, labels=None, *, encoder=None)"},
    "Method": {
        "backbone_rate": "(self, stage)",
        "begin_task": "(self, task)",
        "bytes_per_class": "(self)",
        "centres": "(self)",
        "drop_task_modules": "(self)",
        "end_task": "(self, data)",
        "features": "(self, batch, images=None)",
        "frozen": "(self)",
        "frozen_copy": "(self, module)",
        "make": "(self, build, *purpose)",
        "note": "(self, name, **values)",
        "phases": "(self, task)",
        "reestimated": "(self, plain, mirrored, labels)",
        "scores": "(self, images)",
        "stored": "(self)",
        "train_groups": "(self, stage, *others)",
        "transported": "(self, old, phase)",
    },
}


def shown(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if isinstance(value, dict):
        return "mapping"
    if inspect.isclass(value) and (inspect.isabstract(value) or issubclass(value, Exception)):
        return "class"
    signature = inspect.signature(value)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_names_signatures_and_defaults() -> None:
    assert {name: shown(getattr(gatf, name)) for name in gatf.__all__ if name != "__version__"} == PUBLIC
    assert dir(gatf) == sorted(gatf.__all__)


@pytest.mark.parametrize("name", sorted(METHODS_OF))
def test_public_methods_their_signatures_and_defaults(name: str) -> None:
    value = getattr(gatf, name)
    own = {each for base in value.__mro__ if base.__module__.startswith("gatf.") for each in vars(base)}
    named = {each: inspect.getattr_static(value, each) for each in own if not each.startswith("_")}
    functions = {each for each, found in named.items() if isinstance(found, classmethod) or inspect.isfunction(found)}
    assert {each: shown(getattr(value, each)) for each in functions} == METHODS_OF[name]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_documented_with_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    value = getattr(gatf, name)
    documented = gatf.Method if name == "METHODS" else value
    text = inspect.getdoc(documented) or ""
    assert ">>>" in text
    example = doctest.DocTestParser().get_doctest(text, {"gatf": gatf, "Path": Path}, name, None, None)
    failures = io.StringIO()
    doctest.DocTestRunner().run(example, out=failures.write)
    assert failures.getvalue() == ""
    page = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    assert f"gatf.{name}" in page


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Classifier'"):
        gatf.Classifier  # noqa: B018


def test_importing_gatf_imports_no_torch() -> None:
    code = "import sys, gatf; dir(gatf); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_deprecated_name_works_and_names_its_replacement() -> None:
    def old() -> int:
        deprecated("gatf.old", "gatf.new", removed_in="9.0")
        return 1

    with pytest.warns(DeprecationWarning, match=r"gatf\.old .* removed in gatf 9\.0; use gatf\.new") as caught:
        assert old() == 1
    assert caught[0].filename == __file__


def test_results_are_a_table_with_one_row_per_run(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    config = gatf.load_config(
        "digits", method="ncm", overrides={"scenario.stop_after": 2, "optimisation.first.epochs": 1}
    )
    summary = gatf.run(config, tmp_path / "ncm")
    frame = gatf.results(tmp_path / "ncm")
    assert list(frame["a_last"]) == [summary.a_last]
    assert list(frame["method"]) == ["ncm"]
    assert list(frame["seed"]) == [0]
    with pytest.raises(gatf.UserError, match="there is no folder"):
        gatf.results(tmp_path / "none")
