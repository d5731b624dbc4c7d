package junit

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// element is an element of the schema. text reports whether it may have text.
type element struct {
	required, optional, children []string
	text                         bool
}

// schema is junit-10.xsd of Jenkins' xunit-plugin (commit 031e285ef3b6), as far as our
// reports could use it.
var schema = map[string]element{
	"testsuites": {optional: []string{"name", "time", "tests", "failures", "errors"}, children: []string{"testsuite"}},
	"testsuite": {
		required: []string{"name", "tests", "failures", "errors"}, optional: []string{"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
		children: []string{"testsuite", "properties", "testcase", "system-out", "system-err"},
	},
	"properties": {children: []string{"property"}},
	"property":   {required: []string{"name", "value"}},
	"testcase":   {required: []string{"name"}, optional: []string{"time", "classname", "group"}, children: []string{"skipped", "error", "failure", "system-out", "system-err"}},
	"failure":    {optional: []string{"type", "message"}, text: true},
	"error":      {optional: []string{"type", "message"}, text: true},
	"skipped":    {optional: []string{"type", "message"}, text: true},
	"system-out": {text: true},
	"system-err": {text: true},
}

var surefireTime = regexp.MustCompile(`^(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?$`)

// validate returns everything in a report that the schema does not allow.
func validate(text []byte) (problems []string) {
	d := xml.NewDecoder(bytes.NewReader(text))
	var open []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return problems
		}
		if err != nil {
			return append(problems, err.Error())
		}
		switch t := token.(type) {
		case xml.StartElement:
			name := t.Name.Local
			e, known := schema[name]
			parent := ""
			if len(open) > 0 {
				parent = open[len(open)-1]
			}
			if !known || parent == "" && name != "testsuites" || parent != "" && !slices.Contains(schema[parent].children, name) {
				problems = append(problems, fmt.Sprintf("%s in %q", name, parent))
			}
			var names []string
			for _, a := range t.Attr {
				names = append(names, a.Name.Local)
				if !slices.Contains(append(e.required, e.optional...), a.Name.Local) {
					problems = append(problems, name+" has "+a.Name.Local)
				}
				if a.Name.Local == "time" && !surefireTime.MatchString(a.Value) {
					problems = append(problems, "time "+a.Value)
				}
			}
			for _, r := range e.required {
				if !slices.Contains(names, r) {
					problems = append(problems, name+" has no "+r)
				}
			}
			open = append(open, name)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 && strings.TrimSpace(string(t)) != "" && !schema[open[len(open)-1]].text {
				problems = append(problems, fmt.Sprintf("text %q in %s", t, open[len(open)-1]))
			}
		}
	}
}

func report(reason loop.StopReason, status int) runner.Report {
	return runner.Report{Session: "ses_1", SessionEnded: record.SessionEnded{Reason: reason, ExitStatus: status, Answer: "Done.", CostUSD: "0.01", WallMS: 1_234_567}}
}

func written(t testing.TB, r runner.Report, c Checks) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, r, c, time.Unix(1_800_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	if problems := validate(b.Bytes()); len(problems) > 0 {
		t.Errorf("not valid: %q in\n%s", problems, b.String())
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	all := Checks{Format: true, Verify: true, Replay: true}
	failed := report(loop.StopAnswered, runner.OutcomeUnverified)
	failed.Verification = &record.Verification{Command: "make test", ExitStatus: sandbox.ExitStatus{Code: 2}, Output: "FAIL: cart\n", WallMS: 400}
	limited := report(loop.StopLimit, runner.OutcomeLimit)
	limited.Problem = &record.Problem{Cause: "a limit was reached", Hint: "Raise it."}
	invalid := report(loop.StopAnswered, runner.OutcomeFormat)
	invalid.AnswerProblems = []string{"/: got string, want object"}
	differs := report(loop.StopAnswered, runner.OutcomeFailed)
	differs.ReplayFailed, differs.Differences = true, []record.Difference{{Turn: 1, Call: 2, Tool: "shell", What: "exit_code", Want: "0", Got: "1"}}
	unread := report(loop.StopAnswered, runner.OutcomeUnvouched)
	for name, c := range map[string]struct {
		report runner.Report
		counts string
		want   []string
	}{
		"passed":   {report(loop.StopAnswered, 0), `failures="0" errors="0"`, []string{`<system-out>Done.</system-out>`, `time="1234.567"`, `name="cost_usd" value="0.01"`}},
		"verify":   {failed, `failures="1" errors="0"`, []string{`<failure type="verify" message="make test: exit code 2">make test: exit code 2&#xA;FAIL: cart</failure>`}},
		"limit":    {limited, `failures="0" errors="1"`, []string{`<error type="limit" message="a limit was reached">a limit was reached&#xA;Raise it.</error>`, `skipped="2"`}},
		"schema":   {invalid, `failures="1" errors="0"`, []string{`<failure type="schema" message="/: got string, want object">`}},
		"replay":   {differs, `failures="1" errors="0"`, []string{`message="turn 1, call 2 (shell): exit_code: want &#34;0&#34;, got &#34;1&#34;"`}},
		"unread":   {unread, `failures="0" errors="1"`, []string{`message="exit status 58"`}},
		"no cause": {report(loop.StopCancelled, 130), `failures="0" errors="1"`, []string{`type="cancelled"`}},
	} {
		text := written(t, c.report, all)
		for _, want := range append(c.want, `tests="4" `+c.counts) {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in\n%s", name, want, text)
			}
		}
	}
	var b bytes.Buffer
	if err := WriteError(&b, record.Problem{Cause: "the configuration is wrong", Hint: "Change it."}, time.Now()); err != nil || len(validate(b.Bytes())) > 0 || !strings.Contains(b.String(), `errors="1"`) {
		t.Errorf("%v: %s", err, b.String())
	}
	if problems := validate([]byte(`<testsuites><testsuite name="x" tests="1" failures="0" errors="0"><testcase file="f"/>x</testsuite></testsuites>`)); len(problems) != 3 {
		t.Errorf("control: %q", problems)
	}
}

// TestForeignTextIsBounded: texts that are long or invalid in XML are made to fit.
func TestForeignTextIsBounded(t *testing.T) {
	hostile := "]]></failure><testcase name='x'/>\x00\x1b[31m\ufffe\xff\u202e<!--" + strings.Repeat("<&\"'>", 1<<20)
	r := report(loop.StopAnswered, runner.OutcomeUnverified)
	r.Answer, r.Session = hostile, "ses_1"
	r.Verification = &record.Verification{Command: hostile, Output: hostile}
	for range 1000 {
		r.Differences = append(r.Differences, record.Difference{Tool: "shell", What: "result", Want: hostile[:200], Got: hostile[:200]})
	}
	text := written(t, r, Checks{Verify: true, Replay: true})
	if len(text) > 4<<20 || strings.Count(text, "<testcase ") != 3 || strings.Contains(text, "\u202e") {
		t.Errorf("%d bytes, %d tests", len(text), strings.Count(text, "<testcase "))
	}
}

func TestReadFailures(t *testing.T) {
	const pytest = `<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" tests="2">
<testcase classname="tests.test_cart" name="test_total" time="0.1"><failure message="assert 30 == 27">def test_total():
&gt;       assert total() == 27
tests/test_cart.py:41: AssertionError</failure></testcase>
<testcase classname="tests.test_cart" name="test_ok"/></testsuite></testsuites>
`
	const gotestsum = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="example.org/shop/store"><testcase classname="example.org/shop/store" name="TestTotal"><failure message="Failed" type="">=== RUN   TestTotal
    cart_test.go:41: got 30, want 27
</failure></testcase></testsuite></testsuites>`
	const jest = `<testsuites><testsuite><testcase name="adds" file="src/add.test.js" line="7"><error>boom</error></testcase></testsuite></testsuites>`
	got := ReadFailures([]byte(pytest+gotestsum+"\n"), 10)
	got = append(got, ReadFailures([]byte(jest), 10)...)
	for i := range got {
		got[i].Message = fmt.Sprint(len(got[i].Message) > 0)
	}
	want := []Failure{
		{Class: "tests.test_cart", Name: "test_total", File: "tests/test_cart.py", Line: 41, Message: "true"},
		{Class: "example.org/shop/store", Name: "TestTotal", File: "cart_test.go", Line: 41, Message: "true"},
		{Name: "adds", File: "src/add.test.js", Line: 7, Message: "true"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(ReadFailures([]byte(strings.Repeat(pytest, 20)), 5)); n != 5 {
		t.Errorf("%d failures of at most 5", n)
	}
	for _, broken := range []string{"", "no xml", "<?xml version=\"9\"?><a/>", "<testcase><failure>", `<!DOCTYPE x [<!ENTITY a "b">]><testcase><failure>&a;</failure></testcase>`} {
		if got := ReadFailures([]byte(broken), 5); len(got) > 0 {
			t.Errorf("%q: %v", broken, got)
		}
	}
}

func FuzzReadFailures(f *testing.F) {
	f.Add([]byte(`<?xml version="1.0"?><testsuite><testcase name="a" file="b" line="1"><failure message="c">d</failure></testcase></testsuite>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, got := range ReadFailures(data, 3) {
			if len(got.Message) > maxMessage {
				t.Errorf("%d bytes", len(got.Message))
			}
		}
	})
}
