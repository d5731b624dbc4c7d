package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/secrettest"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
)

// TestNoRecordHasASecret puts secrets into every kind of place of a record:
// texts, arguments with escapes that a model chose, arguments that are not
// JSON, names, long values. No file of the session has one.
func TestNoRecordHasASecret(t *testing.T) {
	naive, rounds, base := 0, 0, t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		values := secrettest.DrawValues(t)
		var secrets []redact.Secret
		for i, v := range values {
			secrets = append(secrets, redact.Secret{Name: fmt.Sprintf("KEY_%d", i), Value: v})
		}
		rounds++
		dir := filepath.Join(base, strconv.Itoa(rounds))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r, err := NewRecorder(RecorderOptions{Dir: dir, Session: "ses_01JD0000000000000000000000", Secrets: secrets})
		if err != nil {
			t.Fatal(err)
		}
		r.opts.Sync = func(*os.File) error { return nil }
		text := secrettest.DrawText(t, values)
		escaped := secrettest.DrawEscaped(t, text)
		result := text
		if rapid.IntRange(0, 4).Draw(t, "a long one") == 0 {
			result += strings.Repeat(text, 70_000/len(text)+1)
		}
		for _, p := range []Payload{
			Warning{Message: text},
			Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
				{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{"command":"` + escaped + `"}`)}},
				{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{}`), InputError: "no object", Raw: `{"command":"` + secrettest.Quote(text)}},
			}},
			Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{Content: []tools.Block{{Text: result}}}}}},
			ToolCompleted{Metadata: map[string]any{text: []any{text}}, FilesModified: []string{text}},
		} {
			if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			got, err := os.ReadFile(path)
			if found := secrettest.FindLeak(string(got), values); found != "" {
				t.Fatalf("%s has %s", d.Name(), found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		trace, err := os.ReadFile(filepath.Join(dir, TraceFile))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(trace) {
			var all any
			if err := json.Unmarshal(line, &all); err != nil {
				t.Fatalf("a record is no JSON any more: %v", err)
			}
			secrettest.VisitStrings(all, func(s string) {
				if found := secrettest.FindLeak(s, values); found != "" {
					t.Fatalf("a text of a record has %s", found)
				}
			})
		}
		// Control: without reading escapes, a model's spelling hides a key.
		var decoded string
		if json.Unmarshal(redact.New(secrets).Bytes([]byte(`"`+escaped+`"`)), &decoded) == nil && secrettest.FindLeak(decoded, values) != "" {
			naive++
		}
	})
	if naive == 0 {
		t.Error("escapes hide no key from the naive way: the test writes none")
	}
}
