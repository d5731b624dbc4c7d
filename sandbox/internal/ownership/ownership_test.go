package ownership

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

const testSession = "ses_01TEST"

// helperEnv makes the test binary a process that owns a cleanup list and waits
// to be killed.
const helperEnv = "CAISSON_OWNER_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		if err := ownAndWait(dir, os.Getenv(helperEnv+"_ENTRIES")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ownAndWait(stateDir, entries string) error {
	instance, err := Instance(stateDir)
	if err != nil {
		return err
	}
	self, err := Self(instance)
	if err != nil {
		return err
	}
	j, err := OpenCleanupList(CleanupOptions{StateDir: stateDir, Backend: "docker", Session: testSession, Owner: self, Dir: sessionDir(stateDir)})
	if err != nil {
		return err
	}
	var list []Entry
	if err := json.Unmarshal([]byte(entries), &list); err != nil {
		return err
	}
	if _, err := j.Add(list...); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sessionDir(stateDir string) string { return filepath.Join(stateDir, "sessions", testSession) }

// makeState makes a state directory with the directory of the test's session.
func makeState(t *testing.T) (dir string, self Identity) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	must(t, os.MkdirAll(sessionDir(dir), 0o700))
	instance, err := Instance(dir)
	must(t, err)
	self, err = Self(instance)
	must(t, err)
	return dir, self
}

func openList(t *testing.T, dir string, id Identity) *CleanupList {
	t.Helper()
	j, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: testSession, Owner: id, Dir: sessionDir(dir)})
	must(t, err)
	t.Cleanup(func() { j.Close() })
	return j
}

// sweep sweeps with a backend that has nothing.
func sweep(t *testing.T, dir string, self Identity) ([]sandbox.Orphan, error) {
	t.Helper()
	return Sweep(t.Context(), SweepOptions{
		StateDir: dir, Backend: "docker", Instance: self.Instance,
		RemoveEntry: func(context.Context, string, Entry) (bool, error) { return false, nil },
	})
}

func TestFate(t *testing.T) {
	_, self := makeState(t)
	if self.PID != os.Getpid() || self.Fate(self.Instance) != Alive {
		t.Errorf("this process is %v: %+v", self.Fate(self.Instance), self)
	}
	gone := exec.Command("true")
	must(t, gone.Run())
	change := func(f func(*Identity)) Identity {
		id := self
		f(&id)
		return id
	}
	for _, tt := range []struct {
		name string
		id   Identity
		want Fate
	}{
		{"dead pid", change(func(id *Identity) { id.PID = gone.ProcessState.Pid() }), Dead},
		{"reused pid", change(func(id *Identity) { id.Start++ }), Dead},
		{"machine restarted", change(func(id *Identity) { id.Boot = "another" }), Dead},
		{"another machine", change(func(id *Identity) { id.Boot, id.Instance = "another", "elsewhere" }), Unknown},
		{"another pid namespace", change(func(id *Identity) { id.PIDNamespace = "pid:[1]" }), Unknown},
		{"another state directory", change(func(id *Identity) { id.Instance = "elsewhere" }), Alive},
		{"nobody", Identity{}, Unknown},
		{"negative pid", change(func(id *Identity) { id.PID = -1 }), Unknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.id.Fate(self.Instance); got != tt.want {
				t.Errorf("fate is %v, want %v", got, tt.want)
			}
		})
	}
}

// TestFateOfAZombie checks that a process that was killed and not yet waited
// for owns nothing any more.
func TestFateOfAZombie(t *testing.T) {
	dir, self := makeState(t)
	child := helper(t, dir)
	id := self
	id.PID = child.Process.Pid
	var err error
	id.Start, err = startTime(id.PID)
	must(t, err)
	if id.Fate(self.Instance) != Alive {
		t.Fatal("control: the child is not alive while it runs")
	}
	must(t, child.Process.Kill())
	waitState(t, id.PID, 'Z')
	if got := id.Fate(self.Instance); got != Dead {
		t.Errorf("fate of a zombie is %v", got)
	}
}

func waitState(t *testing.T, pid int, want byte) {
	t.Helper()
	for t.Context().Err() == nil {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		if state, _, err := parseStat(string(data)); err != nil || state == want {
			must(t, err)
			return
		}
	}
}

func TestParseStat(t *testing.T) {
	fields := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20"
	for name, text := range map[string]string{"plain": "7 (cat)" + fields, "hostile": "7 (a) R 9 (b) c\n)" + fields} {
		state, start, err := parseStat(text)
		if err != nil || state != 'S' || start != 4242 {
			t.Errorf("%s: %c %d %v", name, state, start, err)
		}
	}
	for _, text := range []string{"", "7 cat S", "7 (cat) S 1", "7 (cat)" + strings.Replace(fields, "4242", "x", 1)} {
		if _, _, err := parseStat(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestLabels(t *testing.T) {
	_, self := makeState(t)
	id, session, err := FromLabels(self.Labels(testSession))
	must(t, err)
	if diff := cmp.Diff(self, id); diff != "" || session != testSession {
		t.Errorf("session %q, identity (-want +got):\n%s", session, diff)
	}
	for label, value := range map[string]string{
		LabelSchema: "2", LabelSession: "../x", LabelPID: "0", LabelStart: "-1", LabelLease: "soon",
	} {
		labels := self.Labels(testSession)
		labels[label] = value
		if _, _, err := FromLabels(labels); err == nil {
			t.Errorf("%s=%s was accepted", label, value)
		}
	}
}

func TestInstanceIsStable(t *testing.T) {
	dir, self := makeState(t)
	again, err := Instance(dir)
	must(t, err)
	if again != self.Instance {
		t.Errorf("instance %q, then %q", self.Instance, again)
	}
	other, _ := makeState(t)
	if id, err := Instance(other); err != nil || id == again {
		t.Errorf("another directory has instance %q too (%v)", id, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, instanceFile), []byte("short"), 0o600))
	if _, err := Instance(dir); err == nil {
		t.Error("a damaged file was accepted")
	}
}

func TestUnsafeStateDirectory(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"writable by others": func(dir string) error { return os.Chmod(dir, 0o777) },
		"cleanup lists writable": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, listDir), 0o777), os.Chmod(filepath.Join(dir, listDir), 0o777))
		},
		"cleanup lists a link": func(dir string) error { return os.Symlink(os.TempDir(), filepath.Join(dir, listDir)) },
		"a link": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"-real"), os.Symlink(dir+"-real", dir))
		},
		"a file": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			session := sessionDir(dir)
			must(t, spoil(dir))
			_, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: testSession, Owner: self, Dir: session})
			if err == nil {
				t.Error("a cleanup list was opened")
			}
			if _, err := sweep(t, dir, self); err == nil {
				t.Error("it was swept")
			}
		})
	}
}

func TestCleanupList(t *testing.T) {
	dir, self := makeState(t)
	j := openList(t, dir, self)
	if _, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: testSession, Owner: self, Dir: sessionDir(dir)}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second cleanup list: %v", err)
	}
	ids, err := j.Add(Entry{Kind: KindContainer, Name: "caisson-x"}, Entry{Kind: KindMount, Path: "mounts/1"}, Entry{Kind: KindDirectory, Path: "mounts"})
	must(t, err)
	onDisk := func() []Entry {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, listDir, testSession+".json"))
		must(t, err)
		doc, err := parseList(testSession+".json", data)
		must(t, err)
		var list []Entry
		for _, r := range doc.Entries {
			list = append(list, r.Entry)
		}
		return list
	}
	if diff := cmp.Diff(j.Entries(), onDisk()); diff != "" {
		t.Errorf("the file differs (-memory +file):\n%s", diff)
	}
	must(t, j.Update(ids[0], Entry{Kind: KindContainer, Name: "caisson-y"}))
	must(t, j.Forget(ids[1], ids[2]))
	if diff := cmp.Diff([]Entry{{Kind: KindContainer, Name: "caisson-y"}}, onDisk()); diff != "" {
		t.Errorf("after changes (-want +got):\n%s", diff)
	}
	more, err := j.Add(Entry{Kind: KindMount, Path: "mounts/1"}, Entry{Kind: KindMount, Path: "mounts/2"})
	must(t, err)
	j.Drop(more[0])
	if len(j.Entries()) != 2 || len(onDisk()) != 3 {
		t.Errorf("a dropped entry: %v in memory, %v in the file", j.Entries(), onDisk())
	}
	must(t, j.Forget(more[1]))
	if diff := cmp.Diff(j.Entries(), onDisk()); diff != "" || len(j.Entries()) != 1 {
		t.Errorf("after the next change (-memory +file):\n%s", diff)
	}
	j.Drop(ids[0])
	must(t, j.Close())
	must(t, j.Close())
	if left := list(t, filepath.Join(dir, listDir)); len(left) > 0 {
		t.Errorf("left in the cleanup directory: %q", left)
	}
	if _, err := j.Add(Entry{Kind: KindContainer, Name: "late"}); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("add after close: %v", err)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEntriesThatAreRefused(t *testing.T) {
	dir, self := makeState(t)
	j := openList(t, dir, self)
	for _, e := range []Entry{
		{},
		{Kind: "file", Path: "x"},
		{Kind: KindContainer, Name: "a/b"},
		{Kind: KindContainer, Name: ""},
		{Kind: KindContainer, Name: "-f x"},
		{Kind: KindMount, Path: "/etc"},
		{Kind: KindMount, Path: "../other"},
		{Kind: KindDirectory, Path: "."},
		{Kind: KindDirectory, Path: ""},
		{Kind: KindDirectory, Path: "a/../../b"},
		{Kind: KindCgroup, Name: "system.slice"},
		{Kind: KindCgroup, Name: "../" + testSession},
		{Kind: KindPlaceholder},
		{Kind: KindPlaceholder, Placeholder: &Placeholder{Workspace: "/w", WorkspaceIno: 1, Name: "src"}},
		{Kind: KindPlaceholder, Placeholder: &Placeholder{Workspace: "w", WorkspaceIno: 1, Name: ".git"}},
		{Kind: KindPlaceholder, Placeholder: &Placeholder{Workspace: "/w/../etc", WorkspaceIno: 1, Name: ".git"}},
		{Kind: KindPlaceholder, Placeholder: &Placeholder{Workspace: "/w", WorkspaceIno: 1, Name: ".git/../x"}},
	} {
		if _, err := j.Add(e); err == nil {
			t.Errorf("%+v was accepted", e)
		}
	}
	if left := j.Entries(); len(left) > 0 {
		t.Errorf("noted nevertheless: %v", left)
	}
}

func TestCleanupListOfAnotherDirectoryIsRefused(t *testing.T) {
	dir, self := makeState(t)
	for _, sub := range []string{dir, filepath.Dir(dir), os.TempDir(), filepath.Join(dir, "sessions")} {
		_, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: testSession, Owner: self, Dir: sub})
		if !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("directory %s: %v", sub, err)
		}
	}
}

// helper starts a process that owns a cleanup list with these entries.
func helper(t *testing.T, stateDir string, entries ...Entry) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	data, err := json.Marshal(entries)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), helperEnv+"="+stateDir, helperEnv+"_ENTRIES="+string(data))
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the owner said %q: %v", line, err)
	}
	return cmd
}

func TestSweepLeavesTheLivingAlone(t *testing.T) {
	dir, self := makeState(t)
	must(t, os.Mkdir(filepath.Join(sessionDir(dir), "bundle"), 0o700))
	child := helper(t, dir, Entry{Kind: KindDirectory, Path: "bundle"})
	left, err := sweep(t, dir, self)
	must(t, err)
	if len(left) > 0 || len(list(t, sessionDir(dir))) != 1 {
		t.Fatalf("a living owner's things were swept: %v", left)
	}
	must(t, child.Process.Kill())
	child.Wait()
	left, err = sweep(t, dir, self)
	must(t, err)
	if len(left) != 1 || left[0].Kind != "directory" || left[0].Name != "bundle" || left[0].Session != testSession {
		t.Errorf("swept %+v, want the directory", left)
	}
	if names := list(t, sessionDir(dir)); len(names) > 0 {
		t.Errorf("left in the session's directory: %q", names)
	}
	if left, err = sweep(t, dir, self); len(left) > 0 || err != nil {
		t.Errorf("a second sweep: %v %v", left, err)
	}
}

// TestSweepOfAnUnknownOwner: an owner in another PID namespace can't be seen,
// but holds its lock.
func TestSweepOfAnUnknownOwner(t *testing.T) {
	dir, self := makeState(t)
	elsewhere := self
	elsewhere.PIDNamespace = "pid:[1]"
	must(t, os.Mkdir(filepath.Join(sessionDir(dir), "bundle"), 0o700))
	j := openList(t, dir, elsewhere)
	_, err := j.Add(Entry{Kind: KindDirectory, Path: "bundle"})
	must(t, err)
	if left, err := sweep(t, dir, self); len(left) > 0 || err != nil {
		t.Fatalf("swept while its owner held the lock: %v %v", left, err)
	}
	must(t, j.lock.Release()) // as the kernel does when a process dies
	if left, err := sweep(t, dir, self); len(left) != 1 || err != nil {
		t.Errorf("swept %v %v, want the directory", left, err)
	}
}

// TestSweepWaitsForChildrenOfDeadOwner: a child that the owner forked has the
// lock until it executes a program. A sweep waits for that, but not forever.
func TestSweepWaitsForChildrenOfDeadOwner(t *testing.T) {
	for name, release := range map[string]time.Duration{"a child executes": childTime / 8, "a child hangs": time.Hour} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			dead := self
			dead.Start++ // another process had this PID
			j := openList(t, dir, dead)
			_, err := j.Add(Entry{Kind: KindContainer, Name: "caisson-x"})
			must(t, err)
			var released atomic.Bool
			timer := time.AfterFunc(release, func() {
				released.Store(true)
				if err := j.lock.Release(); err != nil {
					t.Error(err)
				}
			})
			defer timer.Stop()
			begun := time.Now()
			waited := false
			left, err := Sweep(t.Context(), SweepOptions{
				StateDir: dir, Backend: "docker", Instance: self.Instance,
				RemoveEntry: func(context.Context, string, Entry) (bool, error) {
					waited = released.Load() || time.Since(begun) >= childTime
					return true, nil
				},
			})
			if len(left) != 1 || err != nil || !waited {
				t.Errorf("swept %v, %v, and waited for the child: %t", left, err, waited)
			}
		})
	}
}

// TestSweepOfWhatWasGivenUp checks that a process releases what it could not
// remove, and may sweep itself.
func TestSweepOfWhatWasGivenUp(t *testing.T) {
	dir, self := makeState(t)
	must(t, os.Mkdir(filepath.Join(sessionDir(dir), "bundle"), 0o700))
	j := openList(t, dir, self)
	_, err := j.Add(Entry{Kind: KindDirectory, Path: "bundle"})
	must(t, err)
	must(t, j.Close())
	if !Pending(dir, "docker") || Pending(dir, "runc") {
		t.Error("pending is wrong about the backend")
	}
	if left, err := sweep(t, dir, self); len(left) != 1 || err != nil {
		t.Errorf("swept %v %v, want the directory", left, err)
	}
	if Pending(dir, "docker") {
		t.Error("pending after the sweep")
	}
}

func TestSweepGoesOnAfterAnErrorAndKeepsWhatIsLeft(t *testing.T) {
	dir, self := makeState(t)
	must(t, os.Mkdir(filepath.Join(sessionDir(dir), "bundle"), 0o700))
	j := openList(t, dir, self)
	_, err := j.Add(Entry{Kind: KindContainer, Name: "caisson-x"}, Entry{Kind: KindDirectory, Path: "bundle"})
	must(t, err)
	must(t, j.Close())
	hangs := errors.New("the engine hangs")
	o := SweepOptions{
		StateDir: dir, Backend: "docker", Instance: self.Instance,
		RemoveEntry: func(context.Context, string, Entry) (bool, error) { return false, hangs },
	}
	if _, err := Sweep(t.Context(), o); !errors.Is(err, hangs) {
		t.Fatalf("error %v", err)
	}
	if len(list(t, sessionDir(dir))) != 1 {
		t.Error("the directory was removed although the container may still use it")
	}
	o.RemoveEntry = func(_ context.Context, session string, e Entry) (bool, error) {
		return session == testSession && e.Name == "caisson-x", nil
	}
	left, err := Sweep(t.Context(), o)
	if err != nil || len(left) != 2 {
		t.Errorf("second sweep: %v %v, want both", left, err)
	}
}

func TestDamagedCleanupLists(t *testing.T) {
	good := func(self Identity) Document {
		self.PID, self.Start = 1<<22+1, 1 // above every pid_max: dead
		return Document{
			Version: listVersion, Backend: "docker", Session: testSession, Owner: self, Dir: "sessions/" + testSession,
			Entries: []NumberedEntry{{ID: 1, Entry: Entry{Kind: KindDirectory, Path: "bundle"}}},
		}
	}
	for name, spoil := range map[string]func(*Document){
		"directory of the state": func(d *Document) { d.Dir = "." },
		"directory outside":      func(d *Document) { d.Dir = "../" + testSession },
		"another's directory":    func(d *Document) { d.Dir = "sessions/ses_other" },
		"path outside":           func(d *Document) { d.Entries[0].Path = "../ses_other" },
		"absolute path":          func(d *Document) { d.Entries[0].Path = "/etc" },
		"unknown kind":           func(d *Document) { d.Entries[0].Kind = "file" },
		"another session":        func(d *Document) { d.Session = "ses_other" },
		"no backend":             func(d *Document) { d.Backend = "" },
		"version 0":              func(d *Document) { d.Version = 0 },
		"a number twice":         func(d *Document) { d.Entries = append(d.Entries, d.Entries[0]) },
		"a number below 1":       func(d *Document) { d.Entries[0].ID = -1 },
		"strange volume":         func(d *Document) { d.Entries[0].Entry = Entry{Kind: KindVolume, Name: "data"} },
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			doc := good(self)
			spoil(&doc)
			data, err := json.Marshal(doc)
			must(t, err)
			requireSetAside(t, dir, self, data)
		})
	}
	for name, data := range map[string]string{
		"empty": "", "cut off": `{"version":2,"ses`, "garbage": "\x00\x01", "two": `{}{}`, "unknown field": `{"version":2,"trust":"me"}`,
		"not an object": `[]`, "huge": `"` + strings.Repeat("x", maxListSize) + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			requireSetAside(t, dir, self, []byte(data))
		})
	}
	// A forgiving reader's cleanup list is still damage.
	whole, err := json.Marshal(good(owned(t)))
	must(t, err)
	for name, change := range map[string][2]string{
		"a key twice":       {`"session":`, `"dir":"sessions/ses_other","session":`},
		"another spelling":  {`"path":`, `"Path":`},
		"reformatted":       {`"entries":`, "\n\"entries\": "},
		"an entry's secret": {`"path":"bundle"`, `"path":"bundle","path":"../ses_other/bundle"`},
	} {
		t.Run(name, func(t *testing.T) {
			data := bytes.Replace(whole, []byte(change[0]), []byte(change[1]), 1)
			var forgiving Document
			if bytes.Equal(data, whole) || json.Unmarshal(data, &forgiving) != nil {
				t.Fatal("control: encoding/json does not read it either")
			}
			dir, self := makeState(t)
			requireSetAside(t, dir, self, data)
		})
	}
	// Positive control: the same list, undamaged, is acted on.
	dir, self := makeState(t)
	data, err := json.Marshal(good(self))
	must(t, err)
	plant(t, dir, data)
	if left, err := sweep(t, dir, self); len(left) != 1 || err != nil {
		t.Errorf("control: a good cleanup list was not acted on: %v %v", left, err)
	}
}

func owned(t *testing.T) Identity {
	t.Helper()
	_, self := makeState(t)
	return self
}

// TestCleanupListsThatAreNoFiles checks that an irregular file is set aside
// unread, and that the sweep neither hangs nor follows it.
func TestCleanupListsThatAreNoFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			must(t, os.Mkdir(filepath.Join(dir, listDir), 0o700))
			must(t, make(filepath.Join(dir, listDir, testSession+".json")))
			if left, err := sweep(t, dir, self); err == nil || len(left) > 0 {
				t.Errorf("swept %v, error %v", left, err)
			}
			if _, err := os.Lstat(filepath.Join(dir, listDir, testSession+".json.damaged")); err != nil {
				t.Error(err)
			}
			if left, err := sweep(t, dir, self); err != nil || len(left) > 0 {
				t.Errorf("the next sweep: %v, %v", left, err)
			}
		})
	}
}

// TestDamagedCleanupListOfALiveSession checks that damage costs a live session
// nothing: its next entry writes the list anew.
func TestDamagedCleanupListOfALiveSession(t *testing.T) {
	dir, self := makeState(t)
	j := openList(t, dir, self)
	_, err := j.Add(Entry{Kind: KindDirectory, Path: "bundle"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, listDir, testSession+".json"), []byte(`{"version":2,`), 0o600))
	if _, err := sweep(t, dir, self); err == nil {
		t.Error("the damage is not reported")
	}
	if _, err := j.Add(Entry{Kind: KindMount, Path: "mount"}); err != nil {
		t.Fatal(err)
	}
	found, err := ReadLists(dir, "docker")
	if err != nil || len(found) != 1 || len(found[0].Entries) != 2 || found[0].Owner != self {
		t.Errorf("listed %+v, %v", found, err)
	}
}

// TestStrays checks that the lock and half-written list of a killed session are
// removed in time, and those of a beginning session are not.
func TestStrays(t *testing.T) {
	dir, self := makeState(t)
	must(t, os.Mkdir(filepath.Join(dir, listDir), 0o700))
	old := time.Now().Add(-2 * strayTime)
	for _, name := range []string{lockName("ses_old"), ".ses_old.json.new", lockName("ses_new"), ".ses_new.json.new"} {
		path := filepath.Join(dir, listDir, name)
		must(t, os.WriteFile(path, []byte("{"), 0o600))
		if strings.Contains(name, "old") {
			must(t, os.Chtimes(path, old, old))
		}
	}
	_, err := sweep(t, dir, self)
	must(t, err)
	if diff := cmp.Diff([]string{".ses_new.json.new", lockName("ses_new"), lockFile}, list(t, filepath.Join(dir, listDir))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestSweepTidiesTheDirectory checks that a dead owner's socket goes with its
// cleanup list. Another file of that name, and a directory with anything else,
// stay.
func TestSweepTidiesTheDirectory(t *testing.T) {
	for name, tt := range map[string]struct {
		plant func(dir string) error
		left  []string
	}{
		"a socket": {func(dir string) error {
			return unix.Mknod(filepath.Join(dir, sandbox.ExecSocket), unix.S_IFSOCK|0o600, 0)
		}, nil},
		"a file": {func(dir string) error { return os.WriteFile(filepath.Join(dir, sandbox.ExecSocket), nil, 0o600) }, []string{sandbox.ExecSocket}},
		"more":   {func(dir string) error { return os.WriteFile(filepath.Join(dir, "other"), nil, 0o600) }, []string{"other"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, self := makeState(t)
			own := filepath.Join(sessionDir(dir), "sandbox")
			must(t, os.Mkdir(own, 0o700))
			must(t, tt.plant(own))
			dead := self
			dead.PID, dead.Start = 1<<22+1, 1
			j, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: testSession, Owner: dead, Dir: own})
			must(t, err)
			_, err = j.Add(Entry{Kind: KindDirectory, Path: "bundle"})
			must(t, err)
			_, err = sweep(t, dir, self)
			must(t, err)
			if _, err := os.Stat(own); (err == nil) != (tt.left != nil) {
				t.Errorf("the directory: %v", err)
			}
			if tt.left != nil && !cmp.Equal(tt.left, list(t, own)) {
				t.Errorf("left %q", list(t, own))
			}
			if _, err := os.Stat(sessionDir(dir)); err != nil {
				t.Errorf("the session's records: %v", err)
			}
		})
	}
}

// TestRenewedLease checks that a lease begins when a thing is made, even in an
// old process, and survives clocks that differ by an hour.
func TestRenewedLease(t *testing.T) {
	_, self := makeState(t)
	self.Lease = time.Now().Add(-time.Hour)
	if fresh := self.WithNewLease(); fresh.Expired(time.Now().Add(LeaseTime-time.Hour)) || fresh.Expired(time.Now().Add(-time.Hour)) ||
		!fresh.Expired(time.Now().Add(LeaseTime+time.Minute)) || fresh.PID != self.PID || !self.Expired(time.Now()) {
		t.Errorf("renewed %+v of %+v", fresh, self)
	}
}

func plant(t *testing.T, dir string, data []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, listDir), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, listDir, testSession+".json"), data, 0o600))
	for _, d := range []string{sessionDir(dir), filepath.Join(dir, "sessions/ses_other")} {
		must(t, os.MkdirAll(filepath.Join(d, "bundle"), 0o700))
	}
}

func requireSetAside(t *testing.T, dir string, self Identity, data []byte) {
	t.Helper()
	plant(t, dir, data)
	left, err := sweep(t, dir, self)
	if err == nil || len(left) > 0 {
		t.Errorf("swept %v, error %v", left, err)
	}
	for _, d := range []string{"sessions/ses_other/bundle", "sessions/" + testSession + "/bundle", listDir + "/" + testSession + ".json.damaged"} {
		if _, err := os.Stat(filepath.Join(dir, d)); err != nil {
			t.Errorf("%s: %v", d, err)
		}
	}
	if _, err := sweep(t, dir, self); err != nil {
		t.Errorf("the next sweep trips over it again: %v", err)
	}
}

func TestCleanupListOfAnotherVersionStays(t *testing.T) {
	dir, self := makeState(t)
	plant(t, dir, []byte(`{"version":3,"backend":"docker","novelty":{}}`))
	if _, err := sweep(t, dir, self); !errors.Is(err, errOtherVersion) {
		t.Errorf("error %v", err)
	}
	if names := list(t, filepath.Join(dir, listDir)); !cmp.Equal(names, []string{lockFile, testSession + ".json"}) {
		t.Errorf("cleanup directory has %q", names)
	}
}

func TestConcurrentSweeps(t *testing.T) {
	dir, self := makeState(t)
	const sessions = 8
	for i := range sessions {
		session := fmt.Sprintf("ses_%d", i)
		sub := filepath.Join(dir, "sessions", session)
		must(t, os.MkdirAll(filepath.Join(sub, "bundle"), 0o700))
		j, err := OpenCleanupList(CleanupOptions{StateDir: dir, Backend: "docker", Session: session, Owner: self, Dir: sub})
		must(t, err)
		_, err = j.Add(Entry{Kind: KindDirectory, Path: "bundle"})
		must(t, err)
		must(t, j.Close())
	}
	found, errs := make(chan int), make(chan error)
	for range 4 {
		go func() {
			left, err := Sweep(t.Context(), SweepOptions{StateDir: dir, Backend: "docker", Instance: self.Instance})
			found <- len(left)
			errs <- err
		}()
	}
	var sum int
	for range 4 {
		sum += <-found
		must(t, <-errs)
	}
	if sum != sessions {
		t.Errorf("four sweeps at once removed %d things, want each of %d once", sum, sessions)
	}
}

func FuzzParseList(f *testing.F) {
	seeds, err := filepath.Glob("testdata/lists/*.json")
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seed corpus: %v", err)
	}
	for _, s := range seeds {
		data, err := os.ReadFile(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := parseList(testSession+".json", data)
		if err != nil {
			return
		}
		if !filepath.IsLocal(doc.Dir) || !strings.Contains(doc.Dir, testSession) {
			t.Errorf("directory %q", doc.Dir)
		}
		for _, e := range doc.Entries {
			if e.Path != "" && (e.Kind == KindMount || e.Kind == KindDirectory) && !filepath.IsLocal(e.Path) {
				t.Errorf("path %q", e.Path)
			}
		}
		again, err := json.Marshal(doc)
		if err != nil || bytes.Contains(again, []byte{0}) {
			t.Errorf("%s: %v", again, err)
		}
	})
}
