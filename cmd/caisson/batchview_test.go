package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/runner/batch"
)

// TestBatchView: the printed address serves the report, and an interrupt ends the
// command.
func TestBatchView(t *testing.T) {
	dir := t.TempDir()
	l, err := batch.OpenLedger(dir, batch.Spec{Agents: []string{batch.Nop}, Attempts: 1})
	must(t, err)
	must(t, l.Close())
	signals, ended := make(chan os.Signal, 1), make(chan int, 1)
	a := newApp(signals, func(int) { t.Error("exited at once") })
	read, write := io.Pipe()
	a.stdout = write
	go func() { ended <- run(t.Context(), []string{"batch", "view", dir}, nil, a) }()
	address, err := bufio.NewReader(read).ReadString('\n')
	must(t, err)
	r, err := http.Get(strings.TrimSpace(address))
	must(t, err)
	page, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(page), "Leaderboard") {
		t.Errorf("status %d, %v: %s", r.StatusCode, err, page)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	signals <- syscall.SIGINT
	if status := <-ended; status != exitDone {
		t.Errorf("status %d", status)
	}
}
