"""Records and messages made of their parts behave as those that Flower's constructors make."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flower_scheduling._flwr import (
    FastRecordDict,
    new_message,
    new_record,
    new_reply,
    set_message_id,
    take_identity,
)

RECORDS = {
    "arrays": ArrayRecord({"w": Array(np.zeros(2))}),
    "metrics": MetricRecord({"loss": 0.5}),
    "config": ConfigRecord({"lr": 0.1}),
    "more": ConfigRecord(),
}


@pytest.mark.parametrize("kind", [ArrayRecord, MetricRecord, ConfigRecord, RecordDict])
def test_record_of_a_dict_still_checks_what_is_set(kind: type) -> None:
    record = new_record(kind, {})
    assert type(record) is kind
    assert record == kind()
    with pytest.raises(TypeError):
        record[1] = 1.0
    assert len(new_record(kind, {})) == 0, "nothing is shared"


def test_views_by_kind_are_flowers_and_write_through() -> None:
    ours, flowers = new_record(FastRecordDict, dict(RECORDS)), RecordDict(dict(RECORDS))
    for name in ("array_records", "metric_records", "config_records"):
        assert getattr(ours, name) == getattr(flowers, name)
        assert type(getattr(ours, name)) is type(getattr(flowers, name))
    for content in (ours, flowers):
        view = content.config_records
        del view["more"]
        view["new"] = ConfigRecord({"a": 1})
        assert list(content) == ["arrays", "metrics", "config", "new"]
        with pytest.raises(TypeError):
            view["wrong"] = MetricRecord()
        for key in content.config_records:  # each view is of its own
            del content.config_records[key]
        assert list(content) == ["arrays", "metrics"]
    assert ours == flowers
    assert ours.object_id == flowers.object_id
    assert type(ours.copy()) is FastRecordDict


def test_messages_of_their_parts() -> None:
    take_identity(1)
    content = RecordDict(dict(RECORDS))
    asked = Message(content, 7, "train.more", ttl=60.0, group_id="g", dst_task_id=3)
    set_message_id(asked, "message-1")
    message = new_message(asked.metadata, content)
    assert message.__dict__ == asked.__dict__
    assert message.has_content()
    assert not message.has_error()
    ours, flowers = new_reply(asked, content), Message(content, reply_to=asked)
    expires = [each.metadata.created_at + each.metadata.ttl for each in (asked, ours, flowers)]
    assert expires == pytest.approx([expires[0]] * 3)
    for each in (ours, flowers):
        each.metadata.created_at = each.metadata.ttl = 0.0
    assert ours.metadata == flowers.metadata
    assert ours.content is content
