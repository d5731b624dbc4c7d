package batchui

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// TestProgress: a terminal has one line that is drawn again, anything else a line a minute.
func TestProgress(t *testing.T) {
	for _, columns := range []func() int{nil, func() int { return 40 }} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := NewProgress(ProgressOptions{Out: &out, Columns: columns, Total: 100, Kept: []batch.Result{{Outcome: batch.Passed}}, MaxCostMicroUSD: 5_000_000})
			for range 9 {
				p.Start(batch.Key{})
				time.Sleep(20 * time.Second)
				p.Result(batch.Result{Outcome: batch.Failed, Usage: limits.Usage{CostMicroUSD: new(int64(31_000))}})
			}
			p.Print("note")
			p.Close()
			text := out.String()
			want := "10/100 done, 0 running · 1 passed, 9 failed, 0 limit, 0 infrastructure · 3.0/min · ETA 30m0s · $0.279 of $5.00\n"
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

// TestTables: texts of tasks can't reach the terminal.
func TestTables(t *testing.T) {
	var out bytes.Buffer
	r := batch.Result{Key: batch.Key{Task: "a\x1b[31m", Agent: "m", Attempt: 1}, Outcome: batch.Limit, Limit: "wall_time", Class: batch.AgentFailed}
	s := batch.Summarize(batch.Spec{Agents: []string{"m"}, Attempts: 1, Tasks: []batch.SpecTask{{ID: r.Task}, {ID: "b\x07", Unsupported: []string{"x\x1b]0;y"}}}}, []batch.Result{r})
	for _, err := range []error{WriteResults(&out, []batch.Result{r}), WriteSummary(&out, s), WriteComparison(&out, batch.Compare(batch.Side{Agent: "m"}, batch.Side{Agent: "n"}), "\x1bm", "n")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\x07") || !strings.Contains(out.String(), "agent_failed, limit wall_time") || !strings.Contains(out.String(), "0 / 1") {
		t.Errorf("%q", out.String())
	}
}
