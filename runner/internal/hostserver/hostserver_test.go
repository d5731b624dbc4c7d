package hostserver

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestServer checks a server's pipes and environment, and that its children end with it.
func TestServer(t *testing.T) {
	t.Setenv("HIDDEN", "1")
	script := `env | grep -c HIDDEN; echo "$GIVEN"; trap "" TERM; sleep 1000 & echo $!; read line; echo "$line"; while :; do sleep 0.1; done`
	p, err := Start([]string{"sh", "-c", script}, []string{"GIVEN=value", "PATH=/usr/bin:/bin"}, nil, t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(p.Stdout())
	next := func() string {
		lines.Scan()
		return lines.Text()
	}
	if hidden, given := next(), next(); hidden != "0" || given != "value" {
		t.Errorf("%s variables of this process, the given one is %q", hidden, given)
	}
	child, err := strconv.Atoi(next())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p.Stdin(), "hello\n"); err != nil || next() != "hello" {
		t.Errorf("the pipes: %v, %q", err, lines.Text())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a server that ignores SIGTERM ended with %v", err)
	}
	for range 100 {
		if err = syscall.Kill(child, 0); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("what the server started is left")
}
