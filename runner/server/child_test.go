//go:build linux

package server

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
)

// childEnv holds the root folder of the world that a child process serves.
const childEnv = "CAISSON_TEST_SERVER_CHILD"

// child serves a world until it is killed, and says where.
func child() {
	root := os.Getenv(childEnv)
	w := &world{root: root, state: filepath.Join(root, "state"), turns: asks, policy: "default", backend: &fakeBackend{}}
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

// TestServerIsKilled kills a server that asks something, and lets another one
// take its place: nothing that was asked can be answered any more, and nothing
// of it runs.
func TestServerIsKilled(t *testing.T) {
	w := newWorld(t, asks)
	base := w.base
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+w.root)
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(address, "http://") {
		t.Fatalf("the child says %q, %v", address, err)
	}
	w.base = strings.TrimSpace(address)
	id := w.start("bind")
	f := w.follow(id, "")
	turn := w.say(id, "go")
	c := w.asked(id, f)
	// Seen from the other server, it lives elsewhere.
	w.base = base
	var s Session
	w.get("/sessions/"+id).want(t, 200).into(t, &s)
	if s.State != StateElsewhere {
		t.Errorf("another's session is %s", s.State)
	}
	path := "/sessions/" + id + "/turns/" + turn + "/confirmations/" + c.ID
	w.post(path, `{"decision":"allow"}`).problem(t, 409, "elsewhere")
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").problem(t, 409, "elsewhere")
	w.post("/sessions/"+id+"/apply", `{}`).problem(t, 409, "elsewhere")
	watcher := w.follow(id, "")
	watcher.until(runner.KindConfirmationRequested)

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed

	if all := watcher.rest(); len(all) == 0 || all[len(all)-1].data != `{"state":"interrupted"}` {
		t.Errorf("who watched it saw %+v", all)
	}
	before := len(w.trace(id))
	for range 2 { // replayed, too
		w.post(path, `{"decision":"allow","scope":"always"}`).problem(t, 410, "ended")
	}
	var list ConfirmationList
	w.get("/sessions/"+id+"/confirmations").want(t, 200).into(t, &list)
	var got Turn
	w.get("/sessions/"+id+"/turns/"+turn).want(t, 200).into(t, &got)
	s = Session{}
	w.get("/sessions/"+id).want(t, 200).into(t, &s)
	if s.State != StateInterrupted || len(list.Confirmations) != 0 || got.State != TurnInterrupted || s.Exit != nil || s.Title != "go" {
		t.Errorf("after the kill: %+v, %+v, %+v", s, list, got)
	}
	w.post("/sessions/"+id+"/turns", `{"message":"go on"}`).problem(t, 410, "ended")
	w.post("/sessions/"+id+"/turns/"+turn+"/cancel", "").want(t, 200)
	w.do(aliceToken, "DELETE", "/sessions/"+id, "").want(t, 200)
	if records := w.trace(id); len(records) != before || count(records, runner.KindConfirmationResolved) != 0 || count(records, runner.KindToolCalled) != 0 {
		t.Errorf("%d records became %d", before, len(records))
	}
	if _, err := os.Stat(filepath.Join(w.dir, "out.txt")); !os.IsNotExist(err) {
		t.Errorf("what nobody allowed was done: %v", err)
	}
	// The control: allowed, it is done.
	w.base = base
	other := w.start("bind")
	g := w.follow(other, "")
	otherTurn := w.say(other, "go")
	d := w.asked(other, g)
	w.post("/sessions/"+other+"/turns/"+otherTurn+"/confirmations/"+d.ID, `{"decision":"allow"}`).want(t, 200)
	w.ended(other, otherTurn)
	if _, err := os.Stat(filepath.Join(w.dir, "out.txt")); err != nil {
		t.Error(err)
	}
}
