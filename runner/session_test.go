package runner

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestOpenRefusesTools that can't be made, and a dispatcher that can't be made.
func TestOpenRefusesTools(t *testing.T) {
	declared := shell.Declared{
		Name: "twice", Description: "Does it.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Template: shell.Template{Script: "true"},
	}
	for name, refused := range map[string]func(*Options){
		"an unknown answer where no client is": func(o *Options) { o.OnPrompt = "sometimes" },
		"a grace period below zero":            func(o *Options) { o.Grace = -1 },
		"two tools of one name":                func(o *Options) { o.Declared = []shell.Declared{declared, declared} },
		"control":                              nil,
	} {
		b := newBench(t, "  - text: Never asked.\n")
		if refused != nil {
			refused(&b.opts)
		}
		s, err := Open(t.Context(), b.opts)
		if (err != nil) != (refused != nil) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			s.Close()
		}
	}
}

// TestScopeOfASession: the policy learns of paths that lead out of the workspace.
func TestScopeOfASession(t *testing.T) {
	b := newBench(t, "  - text: Never asked.\n")
	if err := os.Symlink("/etc", filepath.Join(b.dir, "out")); err != nil {
		t.Fatal(err)
	}
	scope := b.opened().dispatcherOptions().Scope
	for path, inside := range map[string]bool{"new": true, "../other": false, "/etc/passwd": false, "out/passwd": false} {
		if err := scope(path); (err == nil) != inside {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestSessionIsOverWithoutItsSandbox: no turn begins after a final loss.
func TestSessionIsOverWithoutItsSandbox(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: die}}]\n"+lastTurn+lastTurn)
	b.backend.Scripts["die"] = fakesandbox.EndSandbox(false)
	s := b.opened()
	startTurn(t, s, "one")
	if _, err := s.Start("two"); !errors.Is(err, ErrOver) || !errors.Is(err, tools.ErrSandboxLost) {
		t.Errorf("a turn after the loss: %v", err)
	}
	if over := s.Status().Over; !strings.Contains(over, tools.ErrSandboxLost.Error()) {
		t.Errorf("over: %q", over)
	}
}

// TestDiskOfASession: in overlay mode commands write to the session's directory, here one without a
// size, otherwise to the workspace.
func TestDiskOfASession(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for mode, known := range map[sandbox.WorkspaceMode]bool{sandbox.ModeBind: true, sandbox.ModeOverlay: false} {
		o := Options{Workspace: &Workspace{Dir: dir}, SandboxOptions: SandboxOptions{Mode: mode}}
		s := &Session{opts: o, dir: "/proc", caches: &SessionCaches{}}
		if room := s.opts.sessionRoom(s.dir, s.caches.Mounts)(); (room != diskwatch.UnknownRoom) != known {
			t.Errorf("%s: %+v", mode, room)
		}
	}
}
