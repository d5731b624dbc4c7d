package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// addScript adds another script of a replayed model to the world, and returns its name
// as a model.
func (w *world) addScript(t *testing.T, name, turns string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(w.dir), name+".yaml")
	must(t, os.WriteFile(path, []byte("version: 1\nname: "+name+"\nturns:\n"+turns), 0o600))
	return "replay/" + path
}

// A conversation continues with another model in the same session. An unknown one
// changes nothing.
func TestChoosingAModel(t *testing.T) {
	w := newWorld(t, "  - text: the first answer\n")
	other := w.addScript(t, "other", "  - text: the other answer\n")
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "/model\r"},
		{"the model is replay/", "/model nosuch\r"},
		{"nosuch", "\x03"},
		{"in the history", "make it\r"},
		{"the first answer", "/model " + other + "\r"},
		{"the next turns use replay/", "again\r"},
		{"the other answer", "/quit\r"},
	})
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
	text, err := os.ReadFile(w.onlyTrace(t))
	if err != nil || bytes.Count(text, []byte(`"kind":"`+record.KindSessionResumed+`"`)) != 1 || bytes.Count(text, []byte(`"kind":"`+record.KindTurnCompleted+`"`)) != 2 {
		t.Errorf("the records have another session or other turns: %v\n%s", err, text)
	}
}

// A switching command waits for a running turn, like a message.
func TestChoosingAModelDuringATurn(t *testing.T) {
	w := newWorld(t, "  - calls: [{tool: list_dir, input: {}}]\n  - text: the first answer\n")
	other := w.addScript(t, "other", "  - text: the other answer\n")
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "make it\r/model " + other + "\r"},
		{"the first answer", ""},
		{"the next turns use replay/", "again\r"},
		{"the other answer", "/quit\r"},
	})
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// A conversation continues in another session, which /resume lists. The first one is
// kept. Its own id and an unknown one are refused.
func TestGoingOnWithAnotherSession(t *testing.T) {
	w := newWorld(t, "  - text: an answer\n  - text: the second answer\n")
	if status, shown := chatIn(t, w, "xterm", []step{{"› ", "the old task\r"}, {"an answer", "/quit\r"}}); status != 0 {
		t.Fatalf("status %d\n%q", status, shown)
	}
	old := filepath.Base(filepath.Dir(w.onlyTrace(t)))
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "/resume nosuch\r"},
		{"no session", "\x03"},
		{"in the history", "the new task\r"},
		{"an answer", "/resume\r"},
		{"1  " + old, "/resume 1\r"},
		{"› the old task", ""},
		{"an answer", "more\r"},
		{"the second answer", "/resume " + old + "\r"},
		{"this is session " + old, "\x03\x03\x03"},
	})
	if status != 0 || !strings.Contains(shown, "the old task") {
		t.Errorf("status %d\n%q", status, shown)
	}
	found, _ := filepath.Glob(filepath.Join(w.dir, "../home/.local/state/caisson/sessions/*/"+record.TraceFile))
	if len(found) != 2 {
		t.Errorf("sessions: %q", found)
	}
}

// Lines after a switching command are for the next session. Their end ends the
// conversation.
func TestAPlainConversationSwitches(t *testing.T) {
	w := newWorld(t, "  - text: the first answer\n")
	other := w.addScript(t, "other", "  - text: the other answer\n")
	w.args[0] = "chat"
	var out bytes.Buffer
	w.app.stderr = &out
	w.app.stdin = strings.NewReader("make it\n/model " + other + "\nagain\n")
	if status := run(t.Context(), append(w.args, "--plain"), w.env, w.app); status != 0 || !strings.Contains(out.String(), "the other answer") {
		t.Errorf("status %d: %s", status, &out)
	}
}

// A damaged session is refused, and the conversation returns to the previous session
// and its model.
func TestGoingBackFromADamagedSession(t *testing.T) {
	w := newWorld(t, "  - text: an answer\n  - text: the second answer\n")
	if status, shown := chatIn(t, w, "xterm", []step{{"› ", "the old task\r"}, {"an answer", "/quit\r"}}); status != 0 {
		t.Fatalf("status %d\n%q", status, shown)
	}
	path := w.onlyTrace(t)
	text, err := os.ReadFile(path)
	must(t, err)
	damaged := bytes.Replace(text, []byte("an answer"), []byte("no answer"), 1)
	if err := os.WriteFile(path, damaged, 0o600); err != nil || bytes.Equal(text, damaged) {
		t.Fatalf("the records were not changed: %v", err)
	}
	old := filepath.Base(filepath.Dir(path))
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "the new task\r"},
		{"an answer", "/resume " + old + "\r"},
		{"going back to the session before", "more\r"},
		{"the second answer", "/quit\r"},
	})
	if status != 0 || !strings.Contains(shown, "! ") {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// A conversation uses an overlay unless its backend can't mount one, because the engine
// is on another machine. It keeps a requested mode.
func TestAConversationAsksItsBackendForOverlays(t *testing.T) {
	for _, tt := range []struct {
		backend string
		distant bool
		args    []string
		want    string
	}{
		{"docker", true, nil, "bind"},
		{"docker", true, []string{"--mode", "overlay"}, "overlay"},
		{"docker", false, nil, "overlay"},
		{"gvisor", true, nil, "overlay"},
	} {
		w := newWorld(t, "  - text: an answer\n")
		w.app.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) {
			return &fakeBackend{name: s.Name, distant: tt.distant}, nil
		}
		w.env = append(w.env, "DOCKER_HOST=tcp://192.0.2.1:2375")
		status, shown := chatIn(t, w, "xterm", []step{{"› ", "/quit\r"}}, append(tt.args, "--backend", tt.backend)...)
		text, err := os.ReadFile(w.onlyTrace(t))
		if status != 0 || err != nil || !bytes.Contains(text, []byte(`"workspace_mode":"`+tt.want+`"`)) {
			t.Errorf("%+v: status %d, %v\n%q\n%s", tt, status, err, shown, text)
		}
	}
}
