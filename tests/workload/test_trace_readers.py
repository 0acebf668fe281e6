"""Trace readers: formats found by content, odd files accepted, broken ones named."""

import gzip
import json

import pytest

from phasegate.errors import WorkloadError
from phasegate.workload.json_traces import estimate_tokens
from phasegate.workload.traces import read_trace

AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
AZURE_2025 = """\
TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2024-10-15 12:00:00.000000,0,1000,10
2024-10-15 12:00:02.500000,1,2000,20
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
1106,ChatGPT,0,0,0,Conversation log
1110,GPT-4,300,0,300,API log
1129,GPT-4,1305,477,1782,API log
"""
BURSTGPT_2 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,abc,1.25,ChatGPT,472,18,490,Conversation log
6.0,,0.5,GPT-4,10,20,30,API log
"""
MOONCAKE = """\
{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2354]}
"""
CONVERSATIONS = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "s" * 8},
            {"from": "human", "value": "h" * 9},
            {"from": "gpt", "value": "g" * 40},
            {"from": "human", "value": "not used"},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "a reply to nothing"}]},
    {"id": "c", "conversations": [{"from": "human", "value": "no reply"}]},
    {"id": "d", "conversations": []},
    {
        "id": "e",
        "conversations": [
            {"from": "user", "value": "é\u2028" * 4},
            {"from": "assistant", "value": "好" * 4},
        ],
    },
]
SHAREGPT = json.dumps(CONVERSATIONS)


@pytest.fixture
def write(tmp_path):
    """Writes a file whose name says nothing and returns its path."""

    def write(content, name="trace"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(table):
    times = [None] * len(table) if table.arrival is None else table.arrival.tolist()
    return list(zip(times, table.prompt.tolist(), table.output.tolist(), strict=True))


def test_azure_2023(write):
    assert rows(read_trace(write(AZURE_2023))) == [
        (0.0, 374, 44),
        (pytest.approx(4.314579), 396, 109),
        (pytest.approx(4.541877), 879, 55),
    ]


def test_azure_2024_has_offsets_and_sometimes_no_fraction(write):
    table = read_trace(write(AZURE_2024))
    assert rows(table) == [(0.0, 2162, 5), (pytest.approx(0.99007), 2399, 6)]


def test_azure_2025_has_one_more_column(write):
    assert rows(read_trace(write(AZURE_2025))) == [(0.0, 1000, 10), (2.5, 2000, 20)]


def test_azure_times_that_someone_made_seconds(write):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n1.5,10,1\n2.75,20,2\n"
    assert rows(read_trace(write(text))) == [(0.0, 10, 1), (1.25, 20, 2)]


def test_burstgpt_leaves_out_requests_that_failed(write):
    table = read_trace(write(BURSTGPT))
    assert rows(table) == [(0.0, 472, 18), (40.0, 1087, 230), (1124.0, 1305, 477)]
    assert table.notes == ("2 requests with 0 prompt or output tokens were left out",)


def test_burstgpt_2_has_sessions_and_elapsed_times(write):
    assert rows(read_trace(write(BURSTGPT_2))) == [(0.0, 472, 18), (0.5, 10, 20)]


def test_mooncake_counts_milliseconds(write):
    assert rows(read_trace(write(MOONCAKE))) == [
        (0.0, 6955, 52),
        (pytest.approx(3.053), 6472, 26),
    ]


def test_mooncake_as_one_array(write):
    text = json.dumps([json.loads(line) for line in MOONCAKE.splitlines()], indent=2)
    assert rows(read_trace(write(text))) == rows(read_trace(write(MOONCAKE)))


@pytest.mark.parametrize(
    "text",
    [
        SHAREGPT,
        json.dumps(CONVERSATIONS, indent=1),
        "\n".join(json.dumps(c, ensure_ascii=False) for c in CONVERSATIONS),
    ],
    ids=["array", "indented", "lines"],
)
def test_sharegpt_takes_the_first_question_and_reply(write, text):
    table = read_trace(write(text))
    assert rows(table) == [(None, 2 + 3, 10), (None, 5, 3)]
    assert table.notes == (
        "3 conversations that do not begin with a question and a reply were left out",
        "lengths are estimated: one token for every 4 bytes of text",
    )


def test_sharegpt_with_a_tokenizer_has_no_estimates(write):
    table = read_trace(write(SHAREGPT), count_tokens=len)
    assert rows(table) == [(None, 17, 40), (None, 8, 4)]
    assert len(table.notes) == 1


def test_a_token_is_estimated_as_four_bytes():
    assert [estimate_tokens(t) for t in ("", "a", "abcd", "abcde", "好", "\ud800")] == [
        0,
        1,
        1,
        2,
        1,
        1,
    ]


ALL = {"azure": AZURE_2023, "burstgpt": BURSTGPT, "mooncake": MOONCAKE, "sharegpt": SHAREGPT}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "change",
    {
        "gzip": lambda b: gzip.compress(b),
        "gzip in two members": lambda b: gzip.compress(b[:60]) + gzip.compress(b[60:]),
        "byte order mark": lambda b: b"\xef\xbb\xbf" + b,
        "gzip with byte order mark": lambda b: gzip.compress(b"\xef\xbb\xbf" + b),
        "CRLF": lambda b: b.replace(b"\n", b"\r\n"),
        "no newline at the end": lambda b: b.rstrip(b"\n"),
        "blank lines": lambda b: b"\n  \n" + b.replace(b"\n", b"\n\n") + b"\n\n",
    }.items(),
    ids=lambda item: item[0],
)
def test_odd_files_read_the_same(write, name, change):
    plain = ALL[name].encode()
    assert rows(read_trace(write(change[1](plain)))) == rows(read_trace(write(plain)))


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl.gz", "trace"])
def test_the_name_of_a_file_only_gives_the_label(write, name):
    table = read_trace(write(MOONCAKE, name))
    assert len(table) == 2
    assert table.label == "trace"


def test_columns_in_any_order_quoted_spaced_and_in_any_case(write):
    text = '"generatedtokens", Context Tokens ,Timestamp\n"5","10","1.0"\n6, 20 ,2.0\n'
    assert rows(read_trace(write(text))) == [(0.0, 10, 5), (1.0, 20, 6)]


def test_whole_numbers_that_a_tool_wrote_as_floats(write):
    text = "Timestamp,Request tokens,Response tokens\n1,374.0,4e1\n"
    assert rows(read_trace(write(text))) == [(0.0, 374, 40)]


def test_times_out_of_order_are_sorted_and_noted(write):
    text = "Timestamp,Request tokens,Response tokens\n9,1,1\n7,2,2\n8,3,3\n7,4,4\n"
    table = read_trace(write(text))
    assert rows(table) == [(0.0, 2, 2), (0.0, 4, 4), (1.0, 3, 3), (2.0, 1, 1)]
    assert table.notes == ("requests were sorted by time; it went back 2 times",)


def test_a_limit_stops_reading_early_even_before_a_bad_line(write):
    path = write(BURSTGPT + "broken\n")
    assert len(read_trace(path, limit=3)) == 3
    with pytest.raises(WorkloadError, match="line 7"):
        read_trace(path, limit=4)
    with pytest.raises(WorkloadError, match="requests=0: has to be at least 1"):
        read_trace(path, limit=0)


def test_a_file_longer_than_what_is_read_at_once(write):
    lines = [f"{i},{i + 1},{i % 7 + 1}\n" for i in range(20_000)]
    table = read_trace(write("Timestamp,Request tokens,Response tokens\n" + "".join(lines)))
    assert table.prompt.tolist() == list(range(1, 20_001))
    assert table.arrival[-1] == 19_999


def test_a_long_array_is_read_piece_by_piece(write):
    turns = [{"from": "human", "value": "q" * 400}, {"from": "gpt", "value": "é" * 4000}]
    many = [{"conversations": turns}] * 400
    table = read_trace(write(json.dumps(many, ensure_ascii=False, indent=1)))
    assert set(rows(table)) == {(None, 100, 2000)}
    assert len(table) == 400


A = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
T = "2023-11-16 18:15:46"
M = '{"timestamp": 1, "input_length": 2, "output_length": 3}\n'
S = '[{"conversations": []},\n'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "the file is empty"),
        (" \n\r\n\t\n", "the file holds nothing but blanks"),
        (gzip.compress(b""), "the file holds nothing but blanks"),
        (A, "there is no request in it"),
        ("[]", "there is no request in it"),
        (BURSTGPT.split("5,Ch")[0] + "5,x,0,0,0,y\n", "no request in it; 1 requests with 0 prompt"),
        # what is not a trace
        ("a,b,c\n1,2,3\n", "no known trace format begins with 'a,b,c'"),
        (f"{T},374,44\n", f"no known trace format begins with '{T},374,44'"),
        ("<html>\n", "no known trace format begins with '<html>'"),
        (A.replace(",", ";"), "no known trace format begins with 'TIMESTAMP;ContextTokens"),
        ('{"a": 1}\n', "line 1: no known trace format; known JSON traces are Mooncake"),
        (
            '{"timestamp": 5e300, "input_length": 1, "output_length": 1}\n',
            "line 1: timestamp is 5e+300, beyond any clock",
        ),
        ("[1, 2]", "line 1: no known trace format"),
        (b"PK\x03\x04zip", "this is a zip archive; unpack it first"),
        (b"PAR1\x15\x04", "this is a Parquet file; convert it to CSV first"),
        ("TIMESTAMP".encode("utf-16"), "this is UTF-16 text; save it as UTF-8"),
        (A.encode() + b"\xff\xfe,1,2\n", "this is not UTF-8 text"),
        (gzip.compress(AZURE_2023.encode())[:-20], "the gzip data is damaged or cut short"),
        (b"\x1f\x8b\x08\x00garbage", "the gzip data is damaged or cut short"),
        (b"\x1f\x8b\x07", "the gzip data is damaged or cut short"),
        # headers
        ("TIMESTAMP,ContextTokens\n1,2\n", "of Azure LLM, but its header lacks GeneratedTokens"),
        ("ContextTokens,GeneratedTokens\n", "a trace of Azure LLM, but its header lacks TIMESTAMP"),
        ("Timestamp,Response tokens\n", "a trace of BurstGPT, but its header lacks Request tokens"),
        (A.strip() + ",timestamp\n", "the column TIMESTAMP is in the header twice"),
        ('"TIMESTAMP,ContextTokens\n', "no known trace format"),
        # rows
        (A + f"{T},374\n", "line 2: has 2 columns, the header has 3; fix or remove it"),
        (A + f"{T},374,44,1\n", "line 2: has 4 columns, the header has 3"),
        (A + f"{T},1\n{T},1,1\n\n{T},x,2\n", "line 2: has 2 columns, the header has 3 (1 more"),
        (A + f"{T},1,1\n\n{T},x,2\n", "line 4: ContextTokens is 'x', not a whole number"),
        (A + f"{T},,2\n", "line 2: ContextTokens is '', not a whole number"),
        (A + f"{T},1,-2\n", "line 2: GeneratedTokens is '-2', outside 0 to 100000000"),
        (A + f"{T},1,2.5\n", "line 2: GeneratedTokens is '2.5', not a whole number"),
        (A + f"{T},1,nan\n", "line 2: GeneratedTokens is 'nan', not a whole number"),
        (A + f"{T},1,1e999\n", "line 2: GeneratedTokens is '1e999', not a whole number"),
        (A + f"{T},{'9' * 5000},1\n", "line 2: ContextTokens is '999"),
        (A + f"{T},99999999999,1\n", "line 2: ContextTokens is '99999999999', outside 0 to"),
        (A + "yesterday,1,2\n", "line 2: TIMESTAMP is 'yesterday', not an ISO date and time"),
        (A + f"1.5,1,2\n{T},1,2\n", f"line 3: TIMESTAMP is '{T}', not a number"),
        (A + f"{T},1,2\n17,1,2\n", "line 3: TIMESTAMP is '17', not an ISO date and time"),
        (A + "inf,1,2\n", "line 2: TIMESTAMP is 'inf', not a number"),
        (A + f'{T},"1,2\n{T},1,2\n', "line 2: is not CSV"),
        (A + f"{T},1,\x002\n", "line 2: GeneratedTokens is '\\x002', not a whole number"),
        (M + M[:30], "line 2: is not JSON"),
        (M + "[]\n", "line 2: is not a JSON object"),
        (M + '{"timestamp": 1, "input_length": 2}', "line 2: has no output_length"),
        (M + M.replace("3", "null"), "line 2: output_length is None, not a whole number"),
        (M + M.replace("3", "true"), "line 2: output_length is True, not a whole number"),
        (M + M.replace("3", "3.5"), "line 2: output_length is 3.5, not a whole number"),
        (M + M.replace("3", "Infinity"), "line 2: output_length is inf, not a whole number"),
        (M + M.replace("3", "NaN"), "line 2: output_length is nan, not a whole number"),
        (M + M.replace("3", "[3]"), "line 2: output_length is [3], not a whole number"),
        (M + M.replace(": 1,", ": NaN,"), "line 2: timestamp is nan, not a number"),
        (M + M.replace(": 1,", ': "soon",'), "line 2: timestamp is 'soon', not a number"),
        (M + M.replace(": 1,", ": 1" + "0" * 400 + ","), "line 2: timestamp is 1000"),
        (M + '{"conversations": []}', "line 2: has no timestamp"),
        ("{broken\n" + M, "line 1: is not JSON"),
        ("{\n" + M, "line 1: is not JSON"),
        ("{" * 100 + '"a"', "line 1: is not JSON"),
        ("[" * 100_000, "line 1: is cut short or not JSON"),
        (S + '{"conversations": [{}]}]', "line 2: has no from"),
        (S + '{"conversations": 5}]', "line 2: conversations is not a list"),
        (S + '{"conversations": [{"from": "human", "value": null}]}]', "line 2: a turn of the"),
        (S + '7]', "line 2: is not a JSON object"),
        (S + '\n{"conversations": [', "line 3: is cut short or not JSON"),
        (S, "line 2: is cut short or not JSON"),
        ("[\n", "line 2: is cut short or not JSON"),
        ("[{},\n\n{nonsense}]", "line 1: no known trace format"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_in_one_line(write, content, line):
    path = write(content)
    with pytest.raises(WorkloadError) as error:
        read_trace(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert line in message
    assert "\n" not in message
    assert len(message) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(WorkloadError, match=r"missing: cannot be read \(No such file"):
        read_trace(tmp_path / "missing")
    with pytest.raises(WorkloadError, match=r"cannot be read \(Is a directory\)"):
        read_trace(tmp_path)
