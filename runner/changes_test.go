package runner

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

func TestADiffIsOnlyShownFromTheSessionsStart(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: slip}}]
  - calls:
      - {tool: patch_file, input: {path: a.txt, old: one, new: two}}
      - {tool: write_file, input: {path: new.txt, content: "fresh\n"}}
      - {tool: delete_file, input: {path: gone.txt}}
  - text: done
`)
	b.file("a.txt", "one safe\n")
	b.file("gone.txt", "bye\n")
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "a.txt"), past, past); err != nil {
		t.Fatal(err)
	}
	b.backend.Scripts["slip"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		// The same size and modification time as before.
		b.file("a.txt", "one evil\n")
		if err := os.Chtimes(filepath.Join(b.dir, "a.txt"), past, past); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	want := []record.Changed{
		{Path: "a.txt", Change: "modified", Insertions: 1, Deletions: 1, HasDiff: true},
		{Path: "gone.txt", Change: "deleted", Deletions: 1, HasDiff: true},
		{Path: "new.txt", Change: "added", Insertions: 1, HasDiff: true},
	}
	if diff := cmp.Diff(want, r.Changed); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, r.Patch)
	}
	if !strings.Contains(r.Patch, "-one safe\n+two evil\n") {
		t.Errorf("the diff is not from the session's start:\n%s", r.Patch)
	}
}

// TestWhatCommandsChangeIsCounted: changed lines are counted if the old content was kept, files
// rewritten as they were don't count as changed, and uncounted ones have a size.
func TestWhatCommandsChangeIsCounted(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: work}}]\n  - text: done\n")
	b.file("a.sql", "-- one\ntwo\n")
	b.file("same.txt", "same\n")
	b.file("large.txt", strings.Repeat("x\n", 256<<10))
	b.backend.Scripts["work"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.file("a.sql", "two\nthree\n++ four\n")
		b.file("same.txt", "same\n")
		b.file("large.txt", strings.Repeat("y\n", 256<<10))
		b.file("new.txt", "1\n2\n")
		if err := os.Symlink("../../etc/passwd", filepath.Join(b.dir, "link")); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	want := []record.Changed{
		{Path: "a.sql", Change: "modified", Insertions: 2, Deletions: 1, HasDiff: true},
		{Path: "large.txt", Change: "modified", Size: 512 << 10},
		{Path: "link", Change: "added", Size: int64(len("../../etc/passwd"))},
		{Path: "new.txt", Change: "added", Insertions: 2, HasDiff: true},
	}
	if diff := cmp.Diff(want, r.Changed); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, r.Patch)
	}
	count := record.ChangeCount{Files: 4, Insertions: 4, Deletions: 1, Uncounted: 2}
	if ended := of[record.SessionEnded](t, records)[0]; r.ChangedCount != count || ended.ChangedCount != count {
		t.Errorf("counted %+v, in the record %+v", r.ChangedCount, ended.ChangedCount)
	}
	if diff := cmp.Diff([]record.HostExecuted{{Path: "link", By: "whatever follows it", Target: "../../etc/passwd", Added: true}}, r.HostExecuted); diff != "" {
		t.Errorf("host-executed (-want +got):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(r.Dir, "scratch-*")); err != nil || len(left) > 0 {
		t.Errorf("left in the session's directory: %v, %v", left, err)
	}
}

func TestSecretsStayOutOfTheSessionsFolder(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: leak}}]\n  - text: the key is "+testKey+"\n")
	b.backend.Scripts["leak"] = fakesandbox.WriteText("OPENAI_API_KEY=" + testKey + "\n")
	b.opts.Dir.Log.Error("a log entry with " + testKey)
	r, _ := b.run(t.Context())
	seen := 0
	err := filepath.WalkDir(r.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(testKey)) {
			t.Errorf("%s holds the key", path)
		}
		seen += bytes.Count(text, []byte("[redacted:OPENAI_API_KEY]"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 3 {
		t.Errorf("the key was to be redacted in the result, the answer and the log; found %d marks", seen)
	}
}

func TestProjectSettingsDoNotCount(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.file(".caisson/config.yaml", "policy: {preset: nonsense}\n")
	b.file(".mcp.json", "{}")
	_, records := b.run(t.Context())
	got := of[record.SessionCreated](t, records)[0].Ignored
	want := []record.Ignored{{Name: ".caisson/config.yaml", Why: "the workspace is not trusted"}, {Name: ".mcp.json", Why: "a workspace's own MCP servers are not started"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLongOutputIsCountedAndSpilled(t *testing.T) {
	const lines = 50_000
	b := newBench(t, "  - calls: [{tool: shell, input: {command: flood}}]\n  - text: done\n")
	b.backend.Scripts["flood"] = func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("first\n"))
		for range lines {
			_, _ = cmd.Stdout.Write([]byte("0123456789\n"))
		}
		_, _ = cmd.Stdout.Write([]byte("last\n"))
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	text := resultTexts(t, records)
	for _, want := range []string{"550011 bytes", "first\n", "last\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the result lacks %q: %.300s", want, text)
		}
	}
	name, _ := of[record.ToolCompleted](t, records)[0].Metadata["stdout_spill"].(string)
	whole, err := os.ReadFile(filepath.Join(r.Dir, name))
	if err != nil || len(whole) != 550011 {
		t.Errorf("spilled %d bytes to %q: %v", len(whole), name, err)
	}
}

func TestALongTaskIsSpilled(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.opts.Task = strings.Repeat("long ", 100_000)
	_, records := b.run(t.Context())
	if got := of[record.SessionCreated](t, records)[0]; len(got.Task) > 20_000 {
		t.Errorf("task of %d bytes in the line", len(got.Task))
	}
}
