package record

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// crashEnv names the folder and makes this test's program the writer that is
// killed. crashModeEnv is how it acknowledges.
const (
	crashEnv     = "CAISSON_TEST_CRASH_DIR"
	crashModeEnv = "CAISSON_TEST_CRASH_MODE"
)

// crashWriters is how many goroutines of the killed program write.
const crashWriters = 4

// TestAcknowledgedRecordsSurviveAKill kills a program that writes, syncs and
// acknowledges records as fast as it can, again and again, at any moment. Each
// acknowledged record is in the trace, whose chain is intact. The control
// acknowledges before it writes, and loses some.
func TestAcknowledgedRecordsSurviveAKill(t *testing.T) {
	if dir := os.Getenv(crashEnv); dir != "" {
		crashWriter(dir, os.Getenv(crashModeEnv) == "early")
		return
	}
	rnd := rand.New(rand.NewPCG(3, 7))
	acknowledged := 0
	for round := range 30 {
		dir := t.TempDir()
		acks := killedWriter(t, dir, "", 1+rnd.IntN(400))
		acknowledged += len(acks)
		got, torn := crashedTrace(t, dir)
		for _, ack := range acks {
			if !got[ack] {
				t.Fatalf("round %d: record %s was acknowledged and is not in a trace of %d (torn %v)", round, ack, len(got), torn)
			}
		}
	}
	if acknowledged < 30 {
		t.Errorf("only %d records were acknowledged: nothing was tested", acknowledged)
	}
	lost := 0
	for range 30 {
		dir := t.TempDir()
		acks := killedWriter(t, dir, "early", 1+rnd.IntN(400))
		got, _ := crashedTrace(t, dir)
		for _, ack := range acks {
			if !got[ack] {
				lost++
			}
		}
		if lost > 0 {
			break
		}
	}
	if lost == 0 {
		t.Error("a writer that acknowledges before it writes lost nothing: the test sees no loss")
	}
}

// crashWriter writes until it is killed. It prints a line for each record that
// is on the disk or, if early, will be.
func crashWriter(dir string, early bool) {
	r, err := NewRecorder(RecorderOptions{Dir: dir, Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range crashWriters {
		wg.Go(func() {
			for i := 0; ; i++ {
				ack := fmt.Sprintf("%d-%d", w, i)
				say := func() { _, _ = os.Stdout.WriteString(ack + "\n") }
				if early {
					say()
				}
				message := ack
				if i%50 == 49 {
					message += strings.Repeat(" long", 15_000) // one with a spilled value
				}
				_, err := r.Write(Entry{Actor: ActorSystem, Payload: Warning{CallID: ack, Message: message}})
				if err == nil {
					err = r.Sync()
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				if !early {
					say()
				}
			}
		})
	}
	wg.Wait()
}

// killedWriter runs crashWriter, kills it after some acknowledgements, and
// returns all of them.
func killedWriter(t *testing.T, dir, mode string, after int) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAcknowledgedRecordsSurviveAKill$")
	cmd.Env = append(os.Environ(), crashEnv+"="+dir, crashModeEnv+"="+mode)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acks []string
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break // a line without its end was not acknowledged
		}
		acks = append(acks, strings.TrimSuffix(line, "\n"))
		if len(acks) == after {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the writer was not killed: %v: %s", err, complaint.String())
	}
	return acks
}

// crashedTrace reads what a killed writer left: the acknowledgements of all
// records. Each writer's have no gaps.
func crashedTrace(t *testing.T, dir string) (map[string]bool, bool) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := ReadTrace(f)
	if err != nil {
		t.Fatalf("the chain does not hold: %v", err)
	}
	got, next := map[string]bool{}, map[string]int{}
	for _, rec := range trace.Records {
		p := decodePayload[Warning](t, rec)
		writer, number, _ := strings.Cut(p.CallID, "-")
		if want := next[writer]; number != strconv.Itoa(want) {
			t.Fatalf("writer %s: record %s, want %d", writer, number, want)
		}
		next[writer]++
		got[p.CallID] = true
	}
	return got, trace.Torn
}
