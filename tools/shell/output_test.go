package shell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// keptOutputs are streams in memory.
type keptOutputs map[string][]byte

func (k keptOutputs) Output(handle string) (Kept, error) {
	data, ok := k[handle]
	if !ok {
		return Kept{}, ErrNoOutput
	}
	return Kept{ReaderAt: bytes.NewReader(data), Closer: io.NopCloser(nil), Size: int64(len(data)), Total: int64(len(data)), Whole: true}, nil
}

// pageOf calls the tool and returns the first line and the text separately.
func pageOf(t testing.TB, o outputOpener, resultBytes int, input string) (head, text string, out tools.Output) {
	t.Helper()
	out, err := NewOutput(o)().Execute(t.Context(), &tools.Call{Input: json.RawMessage(input), ResultBytes: resultBytes})
	if err != nil {
		t.Fatalf("%s: %v", input, err)
	}
	if n := len(out.Content[0].Text); n > resultBytes {
		t.Errorf("%s: a page of %d bytes, at most %d", input, n, resultBytes)
	}
	head, text, _ = strings.Cut(out.Content[0].Text, "\n")
	return head, text, out
}

var goOn = regexp.MustCompile(`go on with offset (\d+)`)

// TestPagesHoldEverythingOnce follows the offsets in pages from each start, and
// reassembles the output.
func TestPagesHoldEverythingOnce(t *testing.T) {
	var lines strings.Builder
	for i := range 400 {
		fmt.Fprintf(&lines, "%d %s\n", i, strings.Repeat("äß€😀", i%7))
	}
	for name, data := range map[string]string{
		"lines":       lines.String(),
		"no last end": strings.TrimSuffix(lines.String(), "\n"),
		"one line":    strings.Repeat("€", 5000),
		"empty lines": strings.Repeat("\n", 3000),
		"binary":      string(bytes.Repeat([]byte{0, 0xff, 0xfe, 'a', 0x80, '\n', 0xe2, 0x82}, 700)),
		"tiny":        "x",
	} {
		for _, unit := range []string{"bytes", "lines"} {
			if unit == "lines" && (name == "one line") {
				continue // a line longer than a page is gone on with by bytes
			}
			t.Run(name+" by "+unit, func(t *testing.T) {
				o := keptOutputs{"h": []byte(data)}
				var all strings.Builder
				offset := 0
				if unit == "lines" {
					offset = 1
				}
				for pages := 0; ; pages++ {
					if pages > 5000 {
						t.Fatal("paging does not end")
					}
					head, text, out := pageOf(t, o, 2100, fmt.Sprintf(`{"handle":"h","unit":%q,"offset":%d}`, unit, offset))
					shown := out.Metadata["bytes_shown"].(int)
					all.WriteString(text[:shown]) // what writeLine adds is not the output's
					next := goOn.FindStringSubmatch(head)
					if (next != nil) != out.Truncated {
						t.Fatalf("truncated %t: %s", out.Truncated, head)
					}
					if next == nil {
						break
					}
					n, _ := strconv.Atoi(next[1])
					if n <= offset {
						t.Fatalf("the offset does not grow: %s", head)
					}
					offset = n
				}
				if all.String() != data {
					t.Errorf("%d bytes came together, want %d", all.Len(), len(data))
				}
			})
		}
	}
}

func TestByteOffsetsCutNoRune(t *testing.T) {
	data := strings.Repeat("a€😀ß", 50)
	o := keptOutputs{"h": []byte(data)}
	for offset := range len(data) {
		for _, limit := range []int{1, 2, 3, 4, 7} {
			_, text, out := pageOf(t, o, 5000, fmt.Sprintf(`{"handle":"h","unit":"bytes","offset":%d,"limit":%d}`, offset, limit))
			text = text[:out.Metadata["bytes_shown"].(int)]
			if strings.ContainsRune(text, '\ufffd') || !strings.Contains(data, text) {
				t.Fatalf("offset %d, limit %d: %q", offset, limit, text)
			}
		}
	}
}

func TestOutputLooks(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 1000; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
		if i == 500 {
			b.WriteString("ERROR: " + strings.Repeat("x", 2000) + "needle" + strings.Repeat("y", 2000) + "\n")
		}
	}
	o := keptOutputs{"command-0001-stdout": []byte(b.String()), "empty": nil, "long": []byte(strings.Repeat("z", 100_000) + "\nafter\n")}
	for name, tc := range map[string]struct {
		input      string
		head, text string
	}{
		"default":         {`{"handle":"command-0001-stdout"}`, "lines 1 to 400; go on with offset 401]", "line 1\nline 2\n"},
		"in the middle":   {`{"handle":"command-0001-stdout","offset":10,"limit":2}`, "lines 10 to 11; go on with offset 12]", "line 10\nline 11\n"},
		"from 0 is 1":     {`{"handle":"command-0001-stdout","offset":0,"limit":1}`, "lines 1 to 1; go on with offset 2]", "line 1\n"},
		"the end":         {`{"handle":"command-0001-stdout","offset":1000}`, "lines 1000 to 1001, the end]", "line 999\nline 1000\n"},
		"beyond":          {`{"handle":"command-0001-stdout","offset":2000}`, "beyond the end: there are 1001 lines]", ""},
		"beyond in bytes": {`{"handle":"empty","unit":"bytes","offset":5}`, "beyond the end: there are 0 bytes]", ""},
		"tail":            {`{"handle":"command-0001-stdout","tail":2}`, ", the end]", "line 999\nline 1000\n"},
		"tail in bytes":   {`{"handle":"command-0001-stdout","unit":"bytes","tail":5}`, ", the end]", "1000\n"},
		"tail of all":     {`{"handle":"long","tail":9}`, ", the end]", "after\n"},
		"tail of nothing": {`{"handle":"empty","tail":3}`, "bytes 0 to 0, the end]", ""},
		"pattern":         {`{"handle":"command-0001-stdout","pattern":"line 99[0-2]$"}`, "3 matches in 1001 lines]", "991: line 990\n992: line 991\n993: line 992\n"},
		"pattern, from 0": {`{"handle":"command-0001-stdout","pattern":"line 990$","offset":0}`, "1 match in 1001 lines]", "991: line 990\n"},
		"pattern, more":   {`{"handle":"command-0001-stdout","pattern":"line","limit":1}`, "1 match; there are more: go on with offset 2]", "1: line 1\n"},
		"pattern, on":     {`{"handle":"command-0001-stdout","pattern":"LINE 1000","ignore_case":true,"offset":900}`, "1 match in 102 lines]", "1001: line 1000\n"},
		"no match":        {`{"handle":"command-0001-stdout","pattern":"nowhere"}`, "0 matches in 1001 lines]", ""},
		"long line":       {`{"handle":"long","limit":1}`, "line 1 has 100001 bytes, of which 48976 are shown; go on in it with unit bytes, offset 48976, or with the next line; lines 1 to 1; go on with offset 2]", "zzz"},
		"long lines":      {`{"handle":"long","pattern":"after"}`, "longer than 32768 bytes only the beginning is searched: there are 1]", "2: after\n"},
	} {
		t.Run(name, func(t *testing.T) {
			head, text, _ := pageOf(t, o, tools.DefaultResultBytes, tc.input)
			if !strings.HasSuffix(head, tc.head) || !strings.HasPrefix(text, tc.text) || tc.text == "" && text != "" {
				t.Errorf("%s\n%.200s", head, text)
			}
		})
	}
	_, text, _ := pageOf(t, o, tools.DefaultResultBytes, `{"handle":"command-0001-stdout","pattern":"needle"}`)
	if len(text) > 2*snippetBytes || !strings.Contains(text, "needle") || !strings.HasPrefix(text, "501: …") {
		t.Errorf("a long line is shown as %q", text)
	}
}

func TestOutputRefusals(t *testing.T) {
	o := keptOutputs{"h": []byte("text\n")}
	for name, tc := range map[string]struct{ input, reason string }{
		"unknown":          {`{"handle":"command-0009-stdout"}`, "unknown_handle"},
		"a path":           {`{"handle":"../trace.jsonl"}`, "unknown_handle"},
		"tail and offset":  {`{"handle":"h","tail":1,"offset":2}`, "bad_range"},
		"tail and pattern": {`{"handle":"h","tail":1,"pattern":"x"}`, "bad_range"},
		"bytes, pattern":   {`{"handle":"h","unit":"bytes","pattern":"x"}`, "bad_range"},
		"case of nothing":  {`{"handle":"h","ignore_case":true}`, "bad_range"},
		"no pattern":       {`{"handle":"h","pattern":"("}`, "invalid_pattern"},
		"long pattern":     {`{"handle":"h","pattern":"` + strings.Repeat("a", maxPatternBytes+1) + `"}`, "invalid_pattern"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewOutput(o)().Execute(t.Context(), &tools.Call{Input: json.RawMessage(tc.input)})
			if e, ok := errors.AsType[*tools.Error](err); !ok || e.Reason != tc.reason || !e.Visible || e.Message == "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOutputSaysWhatIsNotKept(t *testing.T) {
	cut := cutOutputs{}
	head, _, _ := pageOf(t, cut, tools.DefaultResultBytes, `{"handle":"h"}`)
	if want := "[h: 900 bytes, of which the first 5 are kept, secrets replaced; lines 1 to 1, the end]"; head != want {
		t.Errorf("%s, want %s", head, want)
	}
}

type cutOutputs struct{}

func (cutOutputs) Output(string) (Kept, error) {
	return Kept{ReaderAt: strings.NewReader("some\n"), Closer: io.NopCloser(nil), Size: 5, Total: 900, Redacted: true}, nil
}

func TestOutputStopsWhenCancelled(t *testing.T) {
	f := NewOutput(keptOutputs{"h": bytes.Repeat([]byte("line\n"), 1<<20)})
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := f().Execute(ctx, &tools.Call{Input: json.RawMessage(`{"handle":"h","pattern":"nowhere"}`)}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestOutputIsReadByManyAtOnce(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 20_000; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	o := keptOutputs{"h": []byte(b.String())}
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			n := 1 + i*1000
			_, text, _ := pageOf(t, o, tools.DefaultResultBytes, fmt.Sprintf(`{"handle":"h","offset":%d,"limit":1}`, n))
			if text != fmt.Sprintf("line %d\n", n) {
				t.Errorf("line %d is %q", n, text)
			}
		})
	}
	all.Wait()
}

func FuzzPages(f *testing.F) {
	f.Add([]byte("a\nb\xe2\x82\xacc\n"), int64(1), int64(2), true)
	f.Add([]byte{0xff, 0xe2, 0x82}, int64(2), int64(1), false)
	f.Fuzz(func(t *testing.T, data []byte, offset, limit int64, byBytes bool) {
		if offset < 0 || limit < 1 {
			return
		}
		unit := "lines"
		if byBytes {
			unit = "bytes"
		}
		o := keptOutputs{"h": data}
		pageOf(t, o, 3000, fmt.Sprintf(`{"handle":"h","unit":%q,"offset":%d,"limit":%d}`, unit, offset, limit))
		pageOf(t, o, 3000, fmt.Sprintf(`{"handle":"h","unit":%q,"tail":%d}`, unit, limit))
	})
}
