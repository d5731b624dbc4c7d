package server

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// childEnv names the root folder of the world that a child process serves.
const childEnv = "CAISSON_TEST_SERVER_CHILD"

// child serves a world until it is killed, and prints its address.
func child() {
	root := os.Getenv(childEnv)
	w := &testEnv{root: root, state: filepath.Join(root, "state"), turns: asks, policy: "default", backend: newFakeBackend()}
	s, err := New(w.options())
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := Listen(context.Background(), "127.0.0.1:0", false)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("http://" + l.Addr().String())
	if err := s.Serve(context.Background(), l); err != nil {
		fmt.Println(err)
	}
}

// startChild starts a process that serves the world's folders, and returns its
// address. end kills it and waits; it may be called twice.
func (w *testEnv) startChild() (base string, end func()) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+w.root)
	cmd.WaitDelay = time.Minute
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	})
	w.t.Cleanup(end)
	text, err := bufio.NewReader(pipe).ReadString('\n')
	if base = strings.TrimSpace(text); !strings.HasPrefix(base, "http://") {
		w.t.Fatalf("the child says %q, %v", text, err)
	}
	return base, end
}

// TestServerIsKilled kills a server with open questions and replaces it with
// another one. The questions can no longer be answered, and nothing that they
// asked about runs.
func TestServerIsKilled(t *testing.T) {
	w := newTestEnv(t, asks)
	base := w.base
	childBase, kill := w.startChild()
	w.base = childBase
	id := w.startSession("bind")
	f := w.followEvents(id, "")
	turn := w.startTurn(id, "go")
	c := w.waitForConfirmation(id, f)
	// For the other server, it lives elsewhere.
	w.base = base
	var s Session
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateElsewhere {
		t.Errorf("another's session is %s", s.State)
	}
	path := "/sessions/" + id + "/turns/" + turn + "/confirmations/" + c.ID
	w.post(path, `{"decision":"allow"}`).requireProblem(t, 409, "elsewhere")
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireProblem(t, 409, "elsewhere")
	w.post("/sessions/"+id+"/apply", `{}`).requireProblem(t, 409, "elsewhere")
	watcher := w.followEvents(id, "")
	watcher.until(record.KindConfirmationRequested)

	kill()

	if all := watcher.rest(); len(all) == 0 || all[len(all)-1].data != `{"state":"interrupted"}` {
		t.Errorf("who watched it saw %+v", all)
	}
	before := len(w.trace(id))
	for range 2 { // replayed, too
		w.post(path, `{"decision":"allow","scope":"always"}`).requireProblem(t, 410, "ended")
	}
	var list ConfirmationList
	w.get("/sessions/"+id+"/confirmations").requireStatus(t, 200).decodeInto(t, &list)
	var got Turn
	w.get("/sessions/"+id+"/turns/"+turn).requireStatus(t, 200).decodeInto(t, &got)
	s = Session{}
	w.get("/sessions/"+id).requireStatus(t, 200).decodeInto(t, &s)
	if s.State != StateInterrupted || len(list.Confirmations) != 0 || got.State != TurnInterrupted || s.Exit != nil || s.Turns != nil || s.Title != "go" {
		t.Errorf("after the kill: %+v, %+v, %+v", s, list, got)
	}
	w.post("/sessions/"+id+"/turns", `{"message":"go on"}`).requireProblem(t, 410, "ended")
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").requireStatus(t, 200)
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	if records := w.trace(id); len(records) != before || count(records, record.KindConfirmationResolved) != 0 || count(records, record.KindToolCalled) != 0 {
		t.Errorf("%d records became %d", before, len(records))
	}
	if _, err := os.Stat(filepath.Join(w.dir, "out.txt")); !os.IsNotExist(err) {
		t.Errorf("what nobody allowed was done: %v", err)
	}
	// Control: if allowed, the call runs.
	w.base = base
	other := w.startSession("bind")
	g := w.followEvents(other, "")
	otherTurn := w.startTurn(other, "go")
	d := w.waitForConfirmation(other, g)
	w.post("/sessions/"+other+"/turns/"+otherTurn+"/confirmations/"+d.ID, `{"decision":"allow"}`).requireStatus(t, 200)
	w.waitForTurn(other, otherTurn)
	if _, err := os.Stat(filepath.Join(w.dir, "out.txt")); err != nil {
		t.Error(err)
	}
}
