package batchui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/batch"
)

func TestParseShard(t *testing.T) {
	for _, c := range []struct {
		text, env string
		want      batch.Shard
		wrong     bool
	}{
		{},
		{text: "2/3", want: batch.Shard{Index: 2, Count: 3}},
		{text: "2/3", env: "SLURM_ARRAY_TASK_ID=1", want: batch.Shard{Index: 2, Count: 3}},
		{env: "SLURM_ARRAY_TASK_ID=4 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_COUNT=4", want: batch.Shard{Index: 4, Count: 4}},
		{env: "SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=4", want: batch.Shard{Index: 1, Count: 4}},
		{env: "JOB_COMPLETION_INDEX=2 JOB_COMPLETIONS=3", want: batch.Shard{Index: 3, Count: 3}},
		{env: "JOB_COMPLETION_INDEX=3 JOB_COMPLETIONS=3", wrong: true},
		{env: "JOB_COMPLETION_INDEX=2", wrong: true},
		{text: "0/3", wrong: true},
		{text: "4/3", wrong: true},
		{text: "1", wrong: true},
		{text: "1/x", wrong: true},
		{text: "1/0", wrong: true},
		{text: "/", wrong: true},
	} {
		got, err := ParseShard(c.text, func(name string) string {
			for v := range strings.FieldsSeq(c.env) {
				if value, ok := strings.CutPrefix(v, name+"="); ok {
					return value
				}
			}
			return ""
		})
		if got != c.want && !c.wrong || (err != nil) != c.wrong {
			t.Errorf("%q, %q: %v, %v", c.text, c.env, got, err)
		}
	}
}

// TestCauseKeepsItsEnd: the hint at the end of a cause must not be cut off.
func TestCauseKeepsItsEnd(t *testing.T) {
	cause := "sandbox could not start: " + strings.Repeat("tried /some/path, ", 50) + "and failed: set programs.runsc"
	var out bytes.Buffer
	s := batch.Summary{Suspects: []batch.SuspectTrial{{Class: "sandbox_start", Cause: cause}}, Agents: []batch.AgentSummary{{Agent: "m", FaultCauses: map[batch.Class]string{"sandbox_start": cause}}}}
	if err := WriteSummary(&out, s); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "set programs.runsc"); n != 2 || out.Len() > 2000 {
		t.Errorf("%d causes keep their ends:\n%s", n, out.String())
	}
}

// TestProgress: a terminal has one redrawn line, other outputs a line a minute.
func TestProgress(t *testing.T) {
	for _, columns := range []func() int{nil, func() int { return 40 }} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := NewProgress(ProgressOptions{Out: &out, Columns: columns, Total: 100, Kept: []batch.Ending{{Outcome: batch.Passed}}, MaxCostMicroUSD: 5_000_000})
			for range 9 {
				p.Start(batch.Key{})
				time.Sleep(20 * time.Second)
				p.Result(batch.Result{Outcome: batch.Failed, Usage: limits.Usage{CostMicroUSD: new(int64(31_000))}})
			}
			p.Print("note")
			p.Close()
			text := out.String()
			want := "10/100 done, 0 running · 1 passed, 9 failed, 0 limit, 0 infrastructure, 0 suspect · 3.0/min · ETA 30m0s · $0.279 of $5.00\n"
			if columns != nil {
				if lines := strings.Count(text, "\n"); lines != 2 || strings.Count(text, "\r") < 100 || !strings.HasSuffix(text, "\r\x1b[K10/100 done, 0 running · 1 passed, 9 fa\n") {
					t.Errorf("%d lines, ends %q", lines, text[len(text)-60:])
				}
			} else if lines := strings.Count(text, "\n"); lines < 4 || lines > 5 || !strings.HasSuffix(text, want) || strings.Contains(text, "\r") {
				t.Errorf("%d lines: %s", lines, text)
			}
		})
	}
}

func TestTables(t *testing.T) {
	var out bytes.Buffer
	r := batch.Result{Key: batch.Key{Task: "a\x1b[31m", Agent: "m", Attempt: 1}, Outcome: batch.Limit, Limit: "wall_time", Class: batch.AgentFailed}
	s := batch.Summarize(batch.Spec{Agents: []string{"m"}, Attempts: 1, Tasks: []batch.SpecTask{{ID: r.Task}, {ID: "b\x07", Unsupported: []string{"x\x1b]0;y"}}}}, []batch.Result{r})
	for _, err := range []error{WriteResults(&out, []batch.Result{r}), WriteSummary(&out, s), WriteComparison(&out, batch.Compare(batch.Side{Agent: "m"}, batch.Side{Agent: "n"}), "\x1bm", "n")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\x07") || !strings.Contains(out.String(), "agent_failed, limit wall_time") || !strings.Contains(out.String(), "0/1") {
		t.Errorf("%q", out.String())
	}
}

// newSide returns a side on which the first passed of n tasks pass.
func newSide(agent string, n, passed, attempts int) batch.Side {
	s := batch.Side{Agent: agent, Spec: batch.Spec{SchemaVersion: 1, Agents: []string{agent}, Attempts: attempts}}
	for i := range n {
		id := fmt.Sprintf("t%02d", i)
		s.Spec.Tasks = append(s.Spec.Tasks, batch.SpecTask{ID: id, Checksum: id})
		for attempt := 1; attempt <= attempts; attempt++ {
			r := batch.Result{Key: batch.Key{Task: id, Agent: agent, Attempt: attempt}, Model: agent, Outcome: batch.Failed}
			if i < passed {
				r.Outcome = batch.Passed
			}
			s.Results = append(s.Results, r)
		}
	}
	return s
}

// TestComparison: the sentence is the verdict, as text and JSON, even without pairs and
// with figures that are NaN.
func TestComparison(t *testing.T) {
	for _, c := range []struct {
		a, b     batch.Side
		sentence string
		json     string
	}{
		{newSide("x", 20, 18, 1), newSide("y", 20, 4, 1), "x is better than y by 70.0 points on 20 tasks (better on 14, worse on 0; McNemar's exact p = 0.00012).", `"verdict":"a",`},
		{newSide("x", 20, 4, 2), newSide("y", 20, 18, 2), "y is better than x by 70.0 points on 20 tasks (95 % CI 48.0 to 92.0).", `"decided_by":"interval"`},
		{newSide("x", 20, 4, 1), newSide("y", 20, 6, 1), "Can't tell: the difference of -10.0 points on 20 tasks is within what chance makes (better on 0, worse on 2; McNemar's exact p = 0.5).", `"verdict":"cannot tell"`},
		{newSide("x", 3, 1, 1), newSide("y", 3, 1, 1), "Can't tell x from y: 3 tasks with the same result.", `"verdict":"equal"`},
		{newSide("x", 0, 0, 1), newSide("y", 1, 1, 1), "Can't tell: x and y have no task in common that was judged on both sides.", `"p":1,"decided_by":"mcnemar","pairs":[],"left_out":[{"task":"t00","reason":"only y has it"}]}`},
	} {
		c.a.Name, c.b.Name = "x", "y"
		compared := batch.Compare(c.a, c.b)
		var out bytes.Buffer
		if err := WriteComparison(&out, compared, "x", "y"); err != nil || !strings.HasPrefix(out.String(), c.sentence+"\n") {
			t.Errorf("%v, %s, want %s", err, out.String(), c.sentence)
		}
		text, err := json.Marshal(NewComparisonDocument(compared, "x", "y"))
		sentence, _ := json.Marshal(c.sentence)
		if err != nil || !bytes.Contains(text, sentence) || !strings.Contains(string(text), c.json) {
			t.Errorf("%v, %s, want %s", err, text, c.json)
		}
	}
}

// TestWriteReports: all files are complete and come from the disk, and each line of
// predictions has the three fields that SWE-bench reads.
func TestWriteReports(t *testing.T) {
	dir := t.TempDir()
	side := newSide("p/m", 3, 2, 2)
	write := func(name string, values ...any) {
		t.Helper()
		var b bytes.Buffer
		for _, v := range values {
			if err := json.NewEncoder(&b).Encode(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var lines []any
	for _, r := range side.Results {
		lines = append(lines, r)
	}
	write(batch.SpecFile, side.Spec)
	write(batch.ResultsFile, lines...)
	for range 2 {
		if s, err := WriteReports(dir); err != nil || s.Agents[0].Passed != 4 {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if d := cmp.Diff([]string{"batch.json", "junit.xml", "predictions-p_m.jsonl", "report.html", "results.jsonl", "summary.json"}, names); d != "" {
		t.Error(d)
	}
	text, err := os.ReadFile(filepath.Join(dir, "predictions-p_m.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(text)) {
		var p map[string]any
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(map[string]any{"instance_id": fmt.Sprintf("t%02d", count), "model_name_or_path": "p/m", "model_patch": ""}, p); d != "" {
			t.Error(d)
		}
		count++
	}
	if count != 3 {
		t.Errorf("%d predictions", count)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !bytes.Contains(page, []byte("<h1>"+filepath.Base(dir)+"</h1>")) {
		t.Errorf("%v, no title", err)
	}
}

// TestWriteCheck: a trial without a result did not run, and its task has no verdict.
func TestWriteCheck(t *testing.T) {
	trials := []batch.Trial{
		{Key: batch.Key{Task: "t", Agent: batch.Oracle, Attempt: 1}},
		{Key: batch.Key{Task: "t", Agent: batch.Nop, Attempt: 1}},
	}
	results := []batch.Result{{Key: trials[0].Key, Outcome: batch.Passed}}
	var out bytes.Buffer
	unsound, undecided, err := WriteCheck(&out, t.TempDir(), trials, results)
	if err != nil || unsound != 0 || undecided != 1 || !strings.Contains(out.String(), "nop: did not run ") || !strings.Contains(out.String(), "0 of 1 tasks are sound") {
		t.Errorf("%d unsound, %d undecided, %v:\n%s", unsound, undecided, err, out.String())
	}
}
