"""Request and response bodies, for validation and the OpenAPI document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from gatf.io.text import harmless
from gatf.serve.limits import LONGEST_LABEL

Label = str | int | bool
Base64 = Annotated[str, Field(description="An encoded image (JPEG, PNG, WebP, GIF, BMP, TIFF …) in base64.")]
Vector = Annotated[list[float], FailFast()]
Name = Annotated[str, Field(max_length=LONGEST_LABEL, pattern=r"^[^\x00]*$")]
"""Text that can be an argument of a command."""


class RequestBody(BaseModel):
    """Has no other fields than those declared."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _report_first_unknown_field(cls, given: Any) -> Any:
        """One error: pydantic would make one of each unknown field, however many there are."""
        if isinstance(given, dict) and (unknown := next((key for key in given if key not in cls.model_fields), None)):
            raise PydanticCustomError("extra_forbidden", "there is no field '{name}'", {"name": harmless(unknown[:80])})
        return given


class PredictBody(RequestBody):
    """Images to classify, or vectors for a model of vectors."""

    images: Annotated[list[Base64], FailFast()] = []
    vectors: Annotated[list[Vector], FailFast()] = []
    encoder: Name | None = Field(None, description="Refuse a model of another encoder.")


class LearnBody(RequestBody):
    """Vectors to learn, with a label each."""

    vectors: Annotated[list[Vector], FailFast()] = Field(min_length=1)
    labels: Annotated[list[str | int], FailFast()] = Field(min_length=1)
    encoder: Name | None = None


class ForgetBody(RequestBody):
    label: Name | int | bool


class RenameBody(RequestBody):
    label: Name
    name: Name = Field(min_length=1, description="The new name.")


class ClassImages(RequestBody):
    """Images of one class."""

    label: str = Field(min_length=1, max_length=LONGEST_LABEL)
    images: Annotated[list[Base64], FailFast()] = Field(min_length=1)


class UpdateBody(RequestBody):
    """Images to learn, by class."""

    classes: Annotated[list[ClassImages], FailFast()] = Field(min_length=1)


class Likely(BaseModel):
    label: Label
    probability: float


class Near(BaseModel):
    label: Label
    distance: float = Field(description="To the class's mean, in units of the class's spread in one direction.")


class Why(BaseModel):
    """The image among the classes."""

    nearest: list[Near]
    point: list[float] = Field(description="On the plane of GET /v1/map.")


class Answer(BaseModel):
    label: Label | None = Field(description="The class; null if the image is unknown.")
    probability: float = Field(description="Of the most likely class.")
    unknown: bool
    certified: bool | None = Field(
        description="Whether transport errors of old classes cannot have changed the prediction; null if not requested "
        "or if nothing was transported."
    )
    top: list[Likely]
    why: Why | None


class Answers(BaseModel):
    model: str = Field(description="Digest of the model that predicted.")
    answers: list[Answer]
    note: str | None = Field(description="A note about the rate of false rejections.")


class ClassInfo(BaseModel):
    label: Label
    images: int = Field(description="Training images.")
    since: int | None = Field(
        description="Number of the update that added it; 0 is the first fit. Null if the history no longer has it."
    )
    bytes: int = Field(description="Stored for this class.")
    accuracy: float | None = Field(
        description="Percent, measured when the class was learnt, less the expected losses since then; null if fewer "
        "than 20 images measured it."
    )
    similar: Label | None = Field(description="The class with the nearest mean.")


class Classes(BaseModel):
    classes: list[ClassInfo]


class Unknown(BaseModel):
    available: bool
    status: str | None = Field(description="Whether the rate of false rejections is promised, estimated or withdrawn.")
    smallest_rate: float | None = Field(description="The smallest rate that can be requested.")


class Kept(BaseModel):
    """One part of the model file."""

    what: str
    bytes: int


class Record(BaseModel):
    """The record of one update."""

    number: int
    date: str
    text: str = Field(description="The record as text.")
    images: int
    held_out: int
    accuracy_new: float | None
    expected_old: float | None
    expected_all: float | None = Field(description="Expected accuracy over all classes, from images of all updates.")
    expected_all_low: float | None
    expected_all_high: float | None
    measured_images: int = Field(description="Images behind it.")
    bytes_per_class: int
    added: list[Label]
    revisited: list[Label]
    warnings: list[str]


class ModelInfo(BaseModel):
    name: str
    digest: str
    bytes: int
    gatf: str
    method: str
    network: str
    shape: list[int] = Field(description="Channels, height and width of the network's input.")
    classes: int
    certifies: bool
    adapt: str | None = Field(description="Whether updates adapt the pretrained network; null if there is none.")
    unknown: Unknown
    kept: list[Kept]
    updates: int = Field(description="Updates since the first fit.")
    history: list[Record] = Field(description="The first record and the newest ones.")
    versions: list[int] = Field(description="Older versions that a rollback can go back to, by number of updates.")


class ClassPlace(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    label: Label
    place: list[float]
    spread: list[list[float]] = Field(description="The class's covariance on the plane, 2×2.")
    origin: list[float] | None = Field(alias="from", description="Its mean before the last update.")


class Chart(BaseModel):
    classes: list[ClassPlace]
    share: float = Field(description="Share of the variance of the class means that the plane shows.")
    moved: bool


class ProgressInfo(BaseModel):
    phase: str | None
    epoch: int | None
    epochs: int | None
    loss: float | None
    share: float = Field(description="Of all steps, from 0 to 1.")
    left: float | None = Field(description="Seconds.")


class ClassCount(BaseModel):
    label: str
    images: int


class UpdateInfo(BaseModel):
    id: str
    state: Literal["receiving", "running", "done", "failed", "cancelled", "interrupted"]
    images: int
    classes: list[ClassCount]
    progress: ProgressInfo
    message: str | None = Field(description="The record as text, or the reason of a failure.")
    left_out: int = Field(description="Images that could not be decoded.")
    resumed: bool
    pictures_deleted: bool


class UpdateList(BaseModel):
    updates: list[UpdateInfo]


class RolledBack(BaseModel):
    updates: int = Field(description="Number of the update that is the last one now.")


class Health(BaseModel):
    status: Literal["ok"]
    ready: bool = Field(description="Whether a model is loaded.")


class ProblemInfo(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


def body(json_model: type[BaseModel] | None, multipart: dict[str, Any] | None) -> dict[str, Any]:
    """OpenAPI's description of a body that is JSON, and multipart or a file."""
    content: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    if multipart is not None:
        content = {"multipart/form-data": {"schema": {"type": "object", "properties": multipart}}}
    if json_model is not None:
        schema = json_model.model_json_schema()
        content["application/json"] = {"schema": _inlined(schema, schema.pop("$defs", {}))}
    return {"required": True, "content": content}


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """The schema with its parts in their places: FastAPI only collects those of the models it reads itself."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rsplit("/", 1)[1]], parts)
    return {name: _inlined(value, parts) for name, value in schema.items()}
