package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// hostedBed is newBed without namespaces, with the probe in the workspace.
func hostedBed(t *testing.T, uid int) *bed {
	t.Helper()
	b := newBed(t, GVisor, uid)
	b.backend.options.Isolation = sandbox.IsolationProcess
	must(t, copyProgram(sandboxtest.BuildProbe(t), filepath.Join(b.workspace, "probe")))
	return b
}

func runProbe(t *testing.T, sb sandbox.Sandbox, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	_, err := sandbox.Run(t.Context(), sb, sandbox.Command{Argv: append([]string{sandbox.WorkspaceDir + "/probe"}, args...), Stdout: &out, Stderr: &errs})
	must(t, err)
	return out.String(), errs.String()
}

func listenAt(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

// The file server has no root directory of its own, so a name that it resolved
// could lead anywhere.
func TestHostedSocketMode(t *testing.T) {
	t.Parallel()
	b := hostedBed(t, os.Geteuid())
	for _, inside := range []bool{false, true} {
		outside := filepath.Join(t.TempDir(), "outside")
		must(t, os.WriteFile(outside, nil, 0o600))
		if inside {
			listenAt(t, filepath.Join(b.workspace, "socket"))
			if _, stderr := runProbe(t, b.start(t, b.spec(t, "ses_socket")), "swap-socket", sandbox.WorkspaceDir+"/socket", outside); stderr != "" {
				t.Errorf("the probe failed: %s", stderr)
			}
		} else { // the control does what the file server must not do
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(outside, link))
			must(t, os.Chmod(link, 0o777))
		}
		info, err := os.Stat(outside)
		must(t, err)
		if changed := info.Mode().Perm() != 0o600; changed == inside {
			t.Errorf("in the sandbox: %t, the mode of a file outside is %v", inside, info.Mode())
		}
	}
}

// The file server of root may do anything to the files of users that the
// workspace's ID map lacks. Root in the sandbox may not.
func TestHostedForeignFiles(t *testing.T) {
	t.Parallel()
	needRoot(t)
	b := hostedBed(t, 1000)
	for name, owner := range map[string]int{"own": 1000, "foreign": 0} {
		file, dir := filepath.Join(b.workspace, name), filepath.Join(b.workspace, name+"-dir")
		must(t, os.WriteFile(file, []byte("secret"), 0o600))
		must(t, os.Mkdir(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("secret"), 0o644))
		for _, path := range []string{file, dir, filepath.Join(dir, "file")} {
			must(t, os.Chown(path, owner, owner))
		}
	}
	spec := b.spec(t, "ses_foreign")
	spec.User, spec.Image = sandbox.UserRoot, images.Reference{Scheme: images.SchemeRootFS, Value: shellRoot(t)}
	sb := b.start(t, spec)
	all := "read\nappend\ntruncate\nmark\nchmod\nlink\nrename\nlist\nmake in directory\nread in directory\nchown\nremove\n"
	if got, _ := runProbe(t, sb, "take", "own", "own-dir"); got != all {
		t.Errorf("positive control: with the owner's files root can %q", got)
	}
	// Where the host shares files, gVisor reports success of what its file server
	// refused to set (pkg/sentry/fsimpl/gofer, dentry.setStat).
	if got, _ := runProbe(t, sb, "take", "foreign", "foreign-dir"); got != "truncate\nchmod\nchown\n" {
		t.Errorf("with files of another user root can %q", got)
	}
	file := filepath.Join(b.workspace, "foreign")
	data, err := os.ReadFile(file)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	if string(data) != "secret" || st.Mode&0o777 != 0o600 || st.Uid != 0 || st.Gid != 0 {
		t.Errorf("the other user's file has %q, mode %o and owner %d:%d", data, st.Mode, st.Uid, st.Gid)
	}
}

// A read-only mount inside a writable one can't be changed through the writable
// mount's connection either. A broken kernel of the sandbox could try that. Here
// a process with CAP_SYS_ADMIN, which no command has, unmounts it.
func TestHostedFrozen(t *testing.T) {
	t.Parallel()
	path := runtimePath(t, GVisor)
	for _, guarded := range []bool{false, true} {
		dir := t.TempDir()
		rootfs, work := filepath.Join(dir, "rootfs"), filepath.Join(dir, "work")
		for _, d := range []string{"usr", "proc", "dev", "work"} {
			must(t, os.MkdirAll(filepath.Join(rootfs, d), 0o755))
		}
		for _, link := range []string{"bin", "lib", "lib64"} {
			must(t, os.Symlink("usr/"+link, filepath.Join(rootfs, link)))
		}
		must(t, os.MkdirAll(filepath.Join(work, ".git", "hooks"), 0o755))
		must(t, os.WriteFile(filepath.Join(work, ".git", "config"), []byte("old"), 0o644))
		caps := []string{"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"}
		script := `umount /work/.git || :
echo new >/work/.git/config; echo x >/work/.git/hooks/post-commit; mv /work/.git /work/moved; rm -rf /work/.git; ln /work/.git/config /work/linked && echo new >/work/linked
echo done >/work/end`
		spec := specs.Spec{
			Version: specVersion, Root: &specs.Root{Path: rootfs, Readonly: true},
			Process: &specs.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/usr/sbin"}, Cwd: "/", Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}},
			Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, bind("/usr", "/usr", "ro"), bind(work, "/work", "rw")},
			Linux:   &specs.Linux{},
		}
		if guarded {
			spec.Mounts = append(spec.Mounts, bind(filepath.Join(work, ".git"), "/work/.git", "ro"))
		}
		must(t, bundle{dir}.writeConfig(&spec))
		args := append(runscFlags(runtimeFlags{root: filepath.Join(dir, "state"), log: filepath.Join(dir, "log"), hosted: true}), "run", "--bundle", dir, "frozen-"+fmt.Sprint(guarded))
		args = slices.DeleteFunc(args, func(a string) bool {
			return strings.HasPrefix(a, "--debug-log") || strings.HasPrefix(a, "--debug-command")
		})
		if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := os.Stat(filepath.Join(work, "end")); err != nil {
			t.Fatalf("the process did not come to its end: %v", err)
		}
		old, err := os.ReadFile(filepath.Join(work, ".git", "config"))
		hooks, hooksErr := os.ReadDir(filepath.Join(work, ".git", "hooks"))
		if untouched := err == nil && string(old) == "old" && hooksErr == nil && len(hooks) == 0; untouched != guarded {
			t.Errorf("guarded: %t, the configuration is %q (%v), the hooks are %v", guarded, old, err, hooks)
		}
	}
}

// After a restart of the container job, other processes have the numbers of a
// dead sandbox's.
func TestForeignNumbers(t *testing.T) {
	t.Parallel()
	b := newBed(t, GVisor, os.Geteuid())
	r := b.backend.runtime
	must(t, os.MkdirAll(r.root, 0o700))
	start := func(id string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read line", "sh", id)
		in, err := cmd.StdinPipe()
		must(t, err)
		t.Cleanup(func() { in.Close() })
		must(t, cmd.Start())
		return cmd
	}
	const id = "caisson-ses_numbers"
	other, own := start("another"), start(id)
	ended := make(chan error, 1)
	go func() { ended <- own.Wait() }()
	state, err := json.Marshal(map[string]any{"goferPid": other.Process.Pid, "sandbox": map[string]int{"pid": own.Process.Pid}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(r.root, id+"_sandbox:"+id+".state"), state, 0o600))
	if removed, err := r.deleteContainer(t.Context(), id); !removed || err != nil {
		t.Errorf("removed: %t, %v", removed, err)
	}
	if left := r.listFiles(id); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the sandbox's own process lives")
	}
	// SIGTERM is not what deleteContainer sends.
	must(t, other.Process.Signal(syscall.SIGTERM))
	if err := other.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("the other process ended before this test ended it: %v", err)
	}
}
