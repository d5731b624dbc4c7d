package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
)

// tryTurns do what docs on a loop with four tools has its readers try: list a directory, and read,
// create and change files.
const tryTurns = `version: 1
name: four
turns:
  - calls: [{tool: list_dir, input: {path: .}, expect: {contains: greet.sh}}]
  - calls: [{tool: read_file, input: {path: greet.sh}, expect: {contains: echo Helo}}]
  - calls: [{tool: write_file, input: {path: hello.py, content: "print(\"Hello, World!\")\n"}, expect: {contains: Created}}]
  - calls: [{tool: read_file, input: {path: hello.py}, expect: {contains: "Hello, World!"}}]
  - calls: [{tool: patch_file, input: {path: hello.py, old: World, new: claw0}, expect: {contains: replaced 1 place}}]
  - calls: [{tool: patch_file, input: {path: hello.py, old: l, new: L}, expect: {contains: matches, error: true}}]
  - text: Done.
`

func TestFourTools(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(path, []byte(tryTurns), 0o600); err != nil {
		t.Fatal(err)
	}
	model, err := replay.Open(path, replay.Options{Report: func(d replay.Difference) { t.Error(d) }})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, "")
	b.opts.Profiles = []loop.Profile{{Model: model}}
	b.file("greet.sh", "echo Helo\n")
	r, _ := b.run(t.Context())
	if r.Reason != loop.StopAnswered || r.Answer != "Done." {
		t.Errorf("ended %s with %q", r.Reason, r.Answer)
	}
	if !strings.Contains(r.Patch, "+print(\"Hello, claw0!\")\n") || len(r.Changed) != 1 {
		t.Errorf("changed %+v:\n%s", r.Changed, r.Patch)
	}
}
