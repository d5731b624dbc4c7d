package sessiondir

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/approval"
)

// pruneClock is the present of these tests.
var pruneClock = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// oldSession makes the directory of a session that ended age ago, as its process left it.
func oldSession(t *testing.T, state string, age time.Duration) string {
	t.Helper()
	began := pruneClock.Add(-age)
	name := "ses_" + ulid.MustNew(ulid.Timestamp(began), ulid.DefaultEntropy()).String()
	dir := Path(state, name)
	if err := os.MkdirAll(filepath.Join(dir, SandboxDir), 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := record.NewRecorder(record.RecorderOptions{Dir: dir, Session: name, Now: func() time.Time { return began }})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []record.Payload{
		record.SessionCreated{Task: "t"},
		record.TurnStarted{},
		record.Warning{Message: strings.Repeat("bulk ", 20_000)},
		record.ConfirmationRequested{CallID: "tu_1", ID: "00ff", Diff: strings.Repeat("+line\n", 20_000)},
		record.ConfirmationResolved{CallID: "tu_1", RequestID: "00ff", Decision: approval.DecisionAllow, By: "user"},
		record.ToolCalled{CallID: "tu_1"},
		record.TurnCompleted{},
		record.SessionEnded{Reason: "answered"},
	} {
		if _, err := r.Write(record.Entry{Actor: record.ActorSystem, Payload: p}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{LogFile, "report.json", "workspace.patch", filepath.Join(record.SpillDir, "command-0001-stdout")} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("bulk"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func listFolder(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name, _ := filepath.Rel(dir, path); err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func prune(t *testing.T, o PruneOptions) PruneReport {
	t.Helper()
	if o.Keep == 0 {
		o.Keep = 90 * day
	}
	o.Now = func() time.Time { return pruneClock }
	report, err := Prune(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

const day = 24 * time.Hour

func TestPruneKeepsTheAuditRecords(t *testing.T) {
	state := t.TempDir()
	old, young := oldSession(t, state, 91*day), oldSession(t, state, 89*day)
	dir := Path(state, old)
	whole, err := os.ReadFile(filepath.Join(dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	before := listFolder(t, dir)
	dry := prune(t, PruneOptions{StateDir: state, DryRun: true})
	if diff := cmp.Diff(before, listFolder(t, dir)); diff != "" {
		t.Errorf("a dry run changed the folder:\n%s", diff)
	}
	report := prune(t, PruneOptions{StateDir: state})
	if diff := cmp.Diff(dry, report); diff != "" {
		t.Errorf("a dry run says something else (-dry +real):\n%s", diff)
	}
	if len(report.Pruned) != 1 || report.Pruned[0].Session != old || report.Pruned[0].Audit != 4 || report.Pruned[0].Removed != 4 || report.Pruned[0].Bytes < 100_000 || len(report.Left) != 0 {
		t.Errorf("report %+v", report)
	}
	left := listFolder(t, dir)
	if len(left) != 2 || left[0] != record.AuditFile || !strings.HasPrefix(left[1], record.SpillDir+"/rec_") {
		t.Errorf("left %q", left)
	}
	if n := len(listFolder(t, Path(state, young))); n != len(before) {
		t.Errorf("a young session has %d files", n)
	}
	audit, err := os.ReadFile(filepath.Join(dir, record.AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	in := record.NewReader(bytes.NewReader(audit))
	var kinds []record.Kind
	for {
		rec, err := in.Next()
		if err != nil {
			if ended := in.Torn(); ended || in.Omitted() != 4 {
				t.Errorf("torn %v, %d omitted", ended, in.Omitted())
			}
			break
		}
		kinds = append(kinds, rec.Kind)
		if !bytes.Contains(whole, append(bytes.Clone(in.Line()), '\n')) {
			t.Errorf("%s is not the line that was written", rec.Kind)
		}
	}
	if diff := cmp.Diff([]record.Kind{record.KindSessionCreated, record.KindConfirmationRequested, record.KindConfirmationResolved, record.KindSessionEnded}, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	lines := bytes.Split(bytes.TrimSpace(whole), []byte("\n"))
	if in.Hash() != fmt.Sprintf("%x", sha256.Sum256(lines[len(lines)-1])) {
		t.Error("the hash of the last line is another one")
	}
	// Later changes are detected.
	for name, edit := range map[string]func(string) string{
		"decision": func(s string) string { return strings.Replace(s, `"allow"`, `"deny"`, 1) },
		"omission": func(s string) string { return strings.Replace(s, `"last":3`, `"last":2`, 1) },
		"hash": func(s string) string {
			return strings.Replace(s, `"omitted":{"first":2,"last":3,"prev":"`, `"omitted":{"first":2,"last":3,"prev":"0`, 1)
		},
		"removed": func(s string) string {
			all := strings.SplitAfter(s, "\n")
			return strings.Join(append(all[:2], all[3:]...), "")
		},
	} {
		bad := edit(string(audit))
		if bad == string(audit) {
			t.Fatalf("%s: the edit changed nothing", name)
		}
		if _, err := record.ReadTrace(strings.NewReader(bad)); !errors.Is(err, record.ErrChain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again := prune(t, PruneOptions{StateDir: state}); len(again.Pruned)+len(again.Left) != 0 {
		t.Errorf("a second call: %+v", again)
	}
}

// TestPruneFinishesWhatWasCutShort interrupts Prune after the audit file is in place.
func TestPruneFinishesWhatWasCutShort(t *testing.T) {
	state := t.TempDir()
	name := oldSession(t, state, 100*day)
	dir := Path(state, name)
	for _, file := range []string{record.AuditFile, "report.json", ".audit-123"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "report.json")); err != nil {
		t.Fatal(err)
	}
	prune(t, PruneOptions{StateDir: state})
	text, err := os.ReadFile(filepath.Join(dir, record.AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	if trace, err := record.ReadTrace(bytes.NewReader(text)); err != nil || len(trace.Records) != 4 || len(listFolder(t, dir)) != 2 {
		t.Errorf("%d records, %v, left %q", len(trace.Records), err, listFolder(t, dir))
	}
}

func TestPruneLeavesWhole(t *testing.T) {
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		make func(t *testing.T, state, dir string)
		why  string
	}{
		"one that runs": {func(t *testing.T, _, dir string) {
			log, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { log.Close() })
			if err := hold(log); err != nil {
				t.Fatal(err)
			}
		}, "it runs"},
		"one whose sandbox is there": {func(t *testing.T, _, dir string) {
			write(t, filepath.Join(dir, SandboxDir, "bundle"), "")
		}, "its sandbox is not gone: the next session removes it"},
		"one with a note": {func(t *testing.T, state, dir string) {
			write(t, filepath.Join(state, "cleanup", filepath.Base(dir)+".json"), "{}")
		}, "its sandbox is not gone: the next session removes it"},
		"one with a patch that was cut off": {func(t *testing.T, _, dir string) {
			write(t, filepath.Join(dir, "patch.json"), fmt.Sprintf(`{"workspace":%q,"mode":"bind"}`, t.TempDir()))
		}, "a patch of it was cut off"},
		"one whose changes can't be read": {func(t *testing.T, _, dir string) {
			write(t, filepath.Join(dir, OverlayDir, "base.json"), "no JSON\n")
		}, "its changes can't be read"},
		"one whose changes wait": {func(t *testing.T, _, dir string) {
			work := t.TempDir()
			folder, err := os.Open(work)
			if err != nil {
				t.Fatal(err)
			}
			defer folder.Close()
			layers, err := overlay.Create(filepath.Join(dir, OverlayDir), overlay.CreateOptions{Session: filepath.Base(dir), Path: work, Workspace: folder})
			if err != nil {
				t.Fatal(err)
			}
			if err := layers.Close(); err != nil {
				t.Fatal(err)
			}
		}, "its changes wait to be applied"},
		"one that was changed": {func(t *testing.T, _, dir string) {
			text, err := os.ReadFile(filepath.Join(dir, record.TraceFile))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, record.TraceFile), strings.Replace(string(text), `"allow"`, `"deny"`, 1))
		}, "its records are damaged: line 6"},
		"one without a log": {func(t *testing.T, _, dir string) {
			if err := os.Remove(filepath.Join(dir, LogFile)); err != nil {
				t.Fatal(err)
			}
		}, "its log is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			dir := Path(state, oldSession(t, state, 100*day))
			tc.make(t, state, dir)
			before := listFolder(t, dir)
			report := prune(t, PruneOptions{StateDir: state})
			if len(report.Pruned) != 0 || len(report.Left) != 1 || !strings.HasPrefix(report.Left[0].Why, tc.why) {
				t.Errorf("report %+v, want %q", report, tc.why)
			}
			if diff := cmp.Diff(before, listFolder(t, dir)); diff != "" {
				t.Errorf("the folder changed:\n%s", diff)
			}
		})
	}
}

// TestPruneTakesATraceWithoutRecords, as from a session that was killed at once.
func TestPruneTakesATraceWithoutRecords(t *testing.T) {
	state := t.TempDir()
	dir := Path(state, oldSession(t, state, 100*day))
	if err := os.Truncate(filepath.Join(dir, record.TraceFile), 0); err != nil {
		t.Fatal(err)
	}
	report := prune(t, PruneOptions{StateDir: state})
	if left := listFolder(t, dir); len(report.Pruned) != 1 || report.Pruned[0].Ended != "" || len(left) != 1 || left[0] != record.AuditFile {
		t.Errorf("report %+v, left %q", report, left)
	}
}

func TestPruneOptions(t *testing.T) {
	state := t.TempDir()
	if _, err := Prune(t.Context(), PruneOptions{StateDir: state}); err == nil {
		t.Error("a time of zero is accepted")
	}
	if report := prune(t, PruneOptions{StateDir: filepath.Join(state, "none")}); len(report.Pruned) != 0 {
		t.Errorf("report %+v", report)
	}
}

// TestPruneNext: starts shorten old sessions, once an hour, and each session once a day.
func TestPruneNext(t *testing.T) {
	state := t.TempDir()
	clock := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	isWhole := func(session string) bool {
		_, err := os.Lstat(filepath.Join(Path(state, session), record.TraceFile))
		return err == nil
	}
	start := func(after time.Duration) {
		clock = clock.Add(after)
		for range 20 { // on a busy machine one doesn't get far
			if err := PruneNext(t.Context(), PruneOptions{StateDir: state, Keep: 90 * day, Now: func() time.Time { return clock }}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, second, young := oldSession(t, state, 102*day), oldSession(t, state, 100*day), oldSession(t, state, 80*day)
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the session ends"))
	if err := PruneNext(cancelled, PruneOptions{StateDir: state, Keep: 90 * day, Now: func() time.Time { return clock }}); err != nil || !isWhole(first) {
		t.Errorf("cancelled: %v", err)
	}
	start(time.Second)
	if isWhole(first) || isWhole(second) || !isWhole(young) {
		t.Errorf("the first is whole: %v, the second: %v, the young: %v", isWhole(first), isWhole(second), isWhole(young))
	}
	before, later := oldSession(t, state, 101*day), oldSession(t, state, 99*day)
	if start(30 * time.Minute); !isWhole(before) || !isWhole(later) {
		t.Error("a start looked again within the hour")
	}
	if start(31 * time.Minute); !isWhole(before) || isWhole(later) {
		t.Errorf("within the day, before where the last start stopped: whole %v; behind it: %v", isWhole(before), isWhole(later))
	}
	if start(24 * time.Hour); isWhole(before) {
		t.Error("the next day begins with the oldest")
	}
	text, err := os.ReadFile(filepath.Join(state, prunedFile))
	if err != nil || string(text) != later {
		t.Errorf("the last session looked at is %q, want %s; %v", text, later, err)
	}
}
