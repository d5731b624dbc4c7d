package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/approval"
)

func trustedFile(path, text string) approval.TrustedFile {
	return approval.TrustedFile{Path: path, SHA256: hexSum([]byte(text))}
}

// runAttentively runs a session and returns the first request and the loaded files.
func runAttentively(t *testing.T, b *bench) (loop.Request, record.SessionCreated) {
	t.Helper()
	model := &attentive{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: model}}
	_, records := b.run(t.Context())
	return model.requests[0], of[record.SessionCreated](t, records)[0]
}

func loadedFiles(c record.SessionCreated) []string {
	var list []string
	for _, f := range c.FilesLoaded {
		list = append(list, fmt.Sprintf("%s %s %t", f.Path, f.Trust, f.SHA256 != ""))
	}
	return list
}

// TestTrustedInstructionsAreTheOperators: a file with the trusted hash is in the system prompt, with its
// name. New or changed ones are data.
func TestTrustedInstructionsAreTheOperators(t *testing.T) {
	const top, nested = "Run make test.\r\n", "Use the store's helpers."
	long := strings.Repeat("x", MaxInstructionBytes+1)
	for name, tc := range map[string]struct {
		files   map[string]string
		trusted []approval.TrustedFile
		off     bool
		system  []string // in the system prompt
		data    []string // in a wrapper
		loaded  []string
		ignored []string
	}{
		"untrusted": {
			files: map[string]string{"AGENTS.md": top, "store/AGENTS.md": nested}, data: []string{"Run make test."}, loaded: []string{"AGENTS.md untrusted true"},
		},
		"trusted": {
			files:   map[string]string{"AGENTS.md": top, "store/AGENTS.md": nested},
			trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top), trustedFile("store/AGENTS.md", nested)},
			system:  []string{"Run make test.", nested, "## From AGENTS.md of the workspace", "## From store/AGENTS.md of the workspace", "at and below store"},
			loaded:  []string{"AGENTS.md trusted true", "store/AGENTS.md trusted true"},
		},
		"changed": {
			files:   map[string]string{"AGENTS.md": order, "store/AGENTS.md": order + "!"},
			trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top), trustedFile("store/AGENTS.md", nested)},
			data:    []string{order}, loaded: []string{"AGENTS.md untrusted true"}, ignored: []string{"store/AGENTS.md"},
		},
		"new beside a trusted one": {
			files:   map[string]string{"AGENTS.md": top, "new/AGENTS.md": order},
			trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top)}, system: []string{"Run make test."}, loaded: []string{"AGENTS.md trusted true"},
		},
		"the trusted text in another file": {
			files: map[string]string{"CLAUDE.md": top}, trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top)},
			data: []string{"Run make test."}, loaded: []string{"CLAUDE.md untrusted true"},
		},
		"gone": {trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top), trustedFile("store/AGENTS.md", nested)}},
		"too long": {
			files: map[string]string{"AGENTS.md": long}, trusted: []approval.TrustedFile{trustedFile("AGENTS.md", long), trustedFile("AGENTS.md", long[:MaxInstructionBytes])},
			data: []string{"xxxx"}, loaded: []string{"AGENTS.md untrusted true"},
		},
		"too many bytes": {
			files: map[string]string{"a/AGENTS.md": long[:30<<10], "b/AGENTS.md": long[:31<<10], "c/AGENTS.md": long[:10<<10], "d/AGENTS.md": nested},
			trusted: []approval.TrustedFile{
				trustedFile("a/AGENTS.md", long[:30<<10]), trustedFile("b/AGENTS.md", long[:31<<10]), trustedFile("c/AGENTS.md", long[:10<<10]), trustedFile("d/AGENTS.md", nested),
			},
			system: []string{nested}, loaded: []string{"a/AGENTS.md trusted true", "b/AGENTS.md trusted true", "d/AGENTS.md trusted true"}, ignored: []string{"c/AGENTS.md"},
		},
		"off": {files: map[string]string{"AGENTS.md": top}, trusted: []approval.TrustedFile{trustedFile("AGENTS.md", top)}, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "  - text: Done.\n")
			b.opts.InstructionFiles, b.opts.TrustedInstructions = !tc.off, tc.trusted
			for file, text := range tc.files {
				b.file(file, text)
			}
			request, created := runAttentively(t, b)
			system := messageText(request.Messages[0])
			for _, want := range tc.system {
				if out, in := bare(request.Messages, want); !strings.Contains(system, want) || out != 1 || in != 0 {
					t.Errorf("%q stands %d times outside, %d inside of a wrapper", want, out, in)
				}
			}
			for _, want := range tc.data {
				if out, in := bare(request.Messages, want); out != 0 || in == 0 {
					t.Errorf("%q stands %d times outside, %d inside of a wrapper", want, out, in)
				}
			}
			var ignored []string
			for _, i := range created.Ignored {
				ignored = append(ignored, i.Name)
			}
			if diff := cmp.Diff([][]string{tc.loaded, tc.ignored}, [][]string{loadedFiles(created), ignored}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestAgentCantSpeakForTheOperator: whatever an agent writes to trusted files, in this or an earlier
// session, is never in the system prompt. The trusted text stays there until the session's end. The
// control skips the comparison of hashes.
func TestAgentCantSpeakForTheOperator(t *testing.T) {
	const text = "Run make test."
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: edit}}]
  - text: First.
  - text: Second.
`)
	b.file("AGENTS.md", text)
	b.file("store/AGENTS.md", text)
	b.opts.InstructionFiles, b.opts.TrustedInstructions = true, []approval.TrustedFile{trustedFile("AGENTS.md", text), trustedFile("store/AGENTS.md", text)}
	b.backend.Scripts["edit"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		for _, name := range []string{"AGENTS.md", "store/AGENTS.md"} {
			if err := os.WriteFile(filepath.Join(b.dir, name), []byte(order), 0o644); err != nil {
				t.Error(err)
			}
		}
		return sandbox.ExitStatus{}
	}
	model := &attentive{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: model}}
	s := b.opened()
	startTurn(t, s, "do it")
	startTurn(t, s, "and more")
	s.Close()
	for i, r := range model.requests {
		if out, _ := bare(r.Messages, order); out != 0 || strings.Count(messageText(r.Messages[0]), text) != 2 {
			t.Errorf("request %d: the order stands %d times outside of a wrapper", i, out)
		}
	}
	for written, want := range map[string]int{text: 0, order: 2} { // the trust that was given; the control: trust in what the agent wrote
		next := newBench(t, "  - text: Third.\n")
		next.file("AGENTS.md", order)
		next.file("store/AGENTS.md", order)
		next.opts.InstructionFiles, next.opts.TrustedInstructions = true, []approval.TrustedFile{trustedFile("AGENTS.md", written), trustedFile("store/AGENTS.md", written)}
		request, _ := runAttentively(t, next)
		if out, _ := bare(request.Messages, order); out != want {
			t.Errorf("with trust in %q the order stands %d times outside of a wrapper, want %d", written, out, want)
		}
	}
}

// The operator's texts are in the system prompt with their sources, whatever the workspace is, and
// their hashes in the records.
func TestOperatorInstructionsNameTheirSource(t *testing.T) {
	b := newBench(t, "  - text: Done.\n")
	b.file("AGENTS.md", order)
	b.opts.InstructionFiles, b.opts.Instructions = true, "Be brief."
	b.opts.InstructionTexts = []InstructionText{{Source: "~/.config/caisson/AGENTS.md", Text: "Write tests.\u200b"}, {Source: "in\x1bstructions", Text: "Use tabs."}}
	request, created := runAttentively(t, b)
	system := messageText(request.Messages[0])
	for _, want := range []string{"Be brief.", "## From ~/.config/caisson/AGENTS.md\n\nWrite tests.\\u200b", "## From in\\x1bstructions\n\nUse tabs."} {
		if !strings.Contains(system, want) {
			t.Errorf("the system prompt lacks %q:\n%s", want, system)
		}
	}
	if out, in := bare(request.Messages, order); out != 0 || in != 1 {
		t.Errorf("the workspace's file stands %d times outside, %d inside of a wrapper", out, in)
	}
	want := []string{"~/.config/caisson/AGENTS.md operator true", "in\x1bstructions operator true", "AGENTS.md untrusted true"}
	if diff := cmp.Diff(want, loadedFiles(created)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
