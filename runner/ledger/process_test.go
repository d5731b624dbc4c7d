package ledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
)

// workerEnv makes the test binary a worker. It has the work, the state
// directory, and whether the lock is used.
const workerEnv = "CAISSON_TEST_LEDGER"

func TestMain(m *testing.M) {
	if args := os.Getenv(workerEnv); args != "" {
		if err := work(strings.Split(args, "\n")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// dayTokens is the ceiling that workers share.
const dayTokens = 1000

// work waits for its input to end, and then uses tokens until the ceiling stops
// it, or holds all of them. It prints what it used.
func work(args []string) error {
	l, err := Open(context.Background(), Options{StateDir: args[1], User: perDay(0, dayTokens, 0), Now: atNoon})
	if err != nil {
		return err
	}
	l.noLock = args[2] == "without"
	fmt.Println("ready")
	if args[0] != "hold" {
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
	}
	for {
		d := limits.Demand{Input: rand.Int64N(40), Output: 1 + rand.Int64N(60), MinOutput: 1, Price: price}
		if args[0] == "hold" {
			d = limits.Demand{Input: dayTokens - 1, Output: 1, MinOutput: 1}
		}
		entry, err := l.ForUser("alice").Reserve(context.Background(), "main", d)
		if errors.As(err, new(*limits.ExceededError)) {
			return l.Close()
		}
		if err != nil {
			return err
		}
		if args[0] == "hold" {
			fmt.Println("held")
			_, err := io.Copy(io.Discard, os.Stdin)
			return err
		}
		used := limits.Usage{InputTokens: entry.Demand.Input, OutputTokens: rand.Int64N(entry.Demand.Output + 1)}
		if err := entry.Settle(&used); err != nil {
			return err
		}
		fmt.Println(used.Tokens())
	}
}

// worker is a process that runs work.
type worker struct {
	cmd   *exec.Cmd
	begin io.Closer
	lines *bufio.Scanner
}

func startWorker(t *testing.T, args ...string) *worker {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join(args, "\n"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	w := &worker{cmd, in, bufio.NewScanner(out)}
	if !w.lines.Scan() || w.lines.Text() != "ready" {
		t.Fatal("a worker did not start")
	}
	return w
}

// wait returns what the worker has used, according to its output.
func (w *worker) wait(t *testing.T) (used int64) {
	t.Helper()
	for w.lines.Scan() {
		n, err := strconv.ParseInt(w.lines.Text(), 10, 64)
		must(t, err)
		used += n
	}
	_ = w.cmd.Wait() // it may have been killed
	return used
}

// race lets processes use tokens at once. It returns what they used together,
// and what the ledger counted.
func race(t *testing.T, lock string, kill bool) (used, counted int64) {
	t.Helper()
	dir := t.TempDir()
	var workers []*worker
	for range 4 {
		workers = append(workers, startWorker(t, "use", dir, lock))
	}
	for _, w := range workers {
		must(t, w.begin.Close())
	}
	for i, w := range workers {
		if kill && i%2 == 0 {
			for range rand.IntN(8) {
				if w.lines.Scan() {
					n, err := strconv.ParseInt(w.lines.Text(), 10, 64)
					must(t, err)
					used += n
				}
			}
			must(t, w.cmd.Process.Kill())
		}
	}
	for _, w := range workers {
		used += w.wait(t)
	}
	l, err := Open(t.Context(), Options{StateDir: dir, User: perDay(0, dayTokens, 0), Now: atNoon})
	if err != nil {
		if lock == "without" {
			return used, -1 // two processes wrote at once
		}
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	doc, err := l.readDocument()
	must(t, err)
	return used, doc.Users["alice"].Day.Tokens
}

// Racing processes together never use more than the ceiling, and all that they
// used is counted. The control has no lock.
func TestProcessesShareACeiling(t *testing.T) {
	for range 12 {
		used, counted := race(t, "with", false)
		if used > dayTokens || used != counted || used < dayTokens-100 {
			t.Fatalf("%d of %d tokens were used, %d counted", used, dayTokens, counted)
		}
	}
	for range 12 {
		if used, counted := race(t, "without", false); used > dayTokens || used != counted {
			return
		}
	}
	t.Error("control: without the lock nothing was lost in 12 rounds")
}

// Processes that are killed at any moment leave an intact ledger with
// everything that was settled, and none of their reservations.
func TestKilledProcesses(t *testing.T) {
	for range 12 {
		used, counted := race(t, "with", true)
		// A killed process may have settled what it did not print.
		if counted > dayTokens || used > counted || counted < dayTokens-100 {
			t.Fatalf("%d of %d tokens were used, %d counted", used, dayTokens, counted)
		}
	}
}

// A process's reservation counts as long as the process is alive, stopped or
// not, and not after kill -9.
func TestReservationLapsesWithItsOwner(t *testing.T) {
	dir := t.TempDir()
	w := startWorker(t, "hold", dir, "with")
	if !w.lines.Scan() || w.lines.Text() != "held" {
		t.Fatal("the worker holds nothing")
	}
	l := openLedger(t, Options{StateDir: dir, User: perDay(0, dayTokens, 0)})
	if _, e := reserve(t, l, "alice", "main", 2); e == nil || e.Reserved != dayTokens {
		t.Errorf("control: beside a live owner: %v", e)
	}
	must(t, w.cmd.Process.Kill())
	_ = w.cmd.Wait() // it was killed
	if _, e := reserve(t, l, "alice", "main", 2); e != nil {
		t.Errorf("after its owner was killed: %v", e)
	}
}
