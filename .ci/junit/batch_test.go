package junit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/joshdk/go-junit"
)

// trialName returns the name of a trial's directory, without which a result is damaged.
func trialName(task, agent string, attempt int) string {
	safe := func(text string, n int) string {
		return strings.TrimLeft(unsafeCharacter.ReplaceAllString(text, "_")[:min(n, len([]rune(text)))], ".-")
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", task, agent, attempt))
	return fmt.Sprintf("%s__%s__%d-%x", safe(task, 64), safe(agent, 32), attempt, sum[:4])
}

var unsafeCharacter = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// The report of a batch is read as what it is: a suite for each agent, a test for each
// trial with its outcome, and hostile text as text.
func TestFileOfABatch(t *testing.T) {
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(filepath.Join(bin, "caisson"))
	if err != nil {
		t.Fatal(err)
	}
	const created = "2026-11-20T10:00:00Z"
	type object = map[string]any
	agents := []string{"p/m " + hostile, "nop"}
	spec := object{"schema_version": 1, "created_at": created, "version": hostile, "backend": "gvisor", "agents": agents, "attempts": 2, "tasks": []object{
		{"id": "task " + hostile, "source": "a", "checksum": "1"}, {"id": "huge", "source": "b", "checksum": "2", "unsupported": []string{hostile}},
	}}
	var results bytes.Buffer
	lines := json.NewEncoder(&results)
	for i, outcome := range []string{"passed", "failed", "limit", "infrastructure"} {
		r := object{
			"schema_version": 1, "task": "task " + hostile, "agent": agents[i/2], "attempt": 1 + i%2, "trial": trialName("task "+hostile, agents[i/2], 1+i%2), "task_checksum": "1", "outcome": outcome,
			"started_at": created, "finished_at": "2026-11-20T10:00:02Z", "class": "broken", "cause": hostile, "limit": "rounds",
		}
		if err := lines.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"batch.json": text, "results.jsonl": results.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), bin, "batch", "report", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	suites, err := junit.IngestFile(filepath.Join(dir, "junit.xml"))
	if err != nil || len(suites) != 2 {
		t.Fatalf("%d suites, %v", len(suites), err)
	}
	want := [][]junit.Status{
		{junit.StatusPassed, junit.StatusFailed, junit.StatusSkipped},
		{junit.StatusFailed, junit.StatusError, junit.StatusSkipped},
	}
	for i, s := range suites {
		if len(s.Tests) != len(want[i]) || s.Totals.Tests != len(want[i]) || s.Totals.Skipped != 1 || s.Totals.Duration.Seconds() != 4 {
			t.Fatalf("%s: %+v", s.Name, s.Totals)
		}
		for j, test := range s.Tests {
			if test.Status != want[i][j] || test.Name == "forged" {
				t.Errorf("%q is %q, want %q", test.Name, test.Status, want[i][j])
			}
			if failed := test.Status == junit.StatusFailed || test.Status == junit.StatusError; failed && (test.Error == nil || test.Error.Error() == "") {
				t.Errorf("%q has no message", test.Name)
			}
		}
	}
}
