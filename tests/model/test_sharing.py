"""Traces without the folders of their files."""

import msgspec
import traces

from tracer.model.records import Line, Program, Remark


def test_no_folder_is_left() -> None:
    trace = traces.several_callers()
    (adam,) = trace.optimizers
    adam = msgspec.structs.replace(
        adam,
        made="secret/models/train.py:30",
        remarks=(Remark("densified", "update_step", "x", "/secret/optimizers.py:7"),),
    )
    lines = (
        Line("<module>", "/home/secret/train.py", 50),
        Line("main", r"C:\secret\train.py", 41),
        Line("<module>", "<stdin>", 1),
        *trace.data.lines[3:],
    )
    program = Program(
        "secret/train.py --data=/secret/x.csv ../secret/y.csv --rate 0.5",
        1.0,
        2.0,
        error="OSError: [Errno 2] No such file: '/secret/x.csv', 3/4 read",
    )
    shared = traces.changed(
        trace,
        optimizers=(adam,),
        lines=lines,
        programs=(program,),
        notes=("adam, made in secret/models/train.py:30, was wrapped late",),
    ).without_paths()
    assert b"secret" not in msgspec.json.encode(shared.data)
    assert [each.file for each in shared.data.lines[:3]] == ["train.py", "train.py", "<stdin>"]
    assert shared.optimizers[0].made == "train.py:30"
    assert shared.programs[0].command == "train.py --data=x.csv y.csv --rate 0.5"
    assert shared.programs[0].error == "OSError: [Errno 2] No such file: 'x.csv', 3/4 read"
    assert shared.notes == ("adam, made in train.py:30, was wrapped late",)
    assert [each.name for each in shared.variables] == [each.name for each in trace.variables]
    assert shared.count("updates", by="variable") == trace.count("updates", by="variable")
