package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

func userChecks() []check {
	return []check{
		{name: "root inside is root nowhere else", run: checkRoot},
		{name: "root inside owns a writable root", writable: true, run: checkRootOwnsRoot},
	}
}

// startUser starts another sandbox with a user policy and other changes. It
// returns nil if the backend must refuse that, and did.
func (e *env) startUser(ctx context.Context, name string, policy sandbox.UserPolicy, refused bool, change func(e *env)) (*env, error) {
	other := newEnv(e.target, filepath.Join(e.base, name))
	other.user = policy
	change(other)
	err := other.start(ctx, nil)
	if !refused {
		return other, err
	}
	if incapable, ok := errors.AsType[*sandbox.IncapableError](err); err != nil && (!ok || incapable.Hint == "") {
		return nil, errorf("user %s: %w, want an IncapableError with a hint", policy, err)
	}
	return nil, other.expectRefused(ctx, err, sandbox.ErrUnsupported, "")
}

// checkRootOwnsRoot: with a writable root, root inside changes root's files in
// the image. In the same sandbox it changes only the layers of an overlay.
func checkRootOwnsRoot(ctx context.Context, shared *env) (err error) {
	if shared.target.RootRefused {
		return nil // another check asserts this
	}
	e := newEnv(shared.target, filepath.Join(shared.base, "root-root"))
	e.user, e.root, e.overlay, e.plant = sandbox.UserRoot, true, true, plantForeign
	remove, err := addLayered(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := e.start(ctx, nil); err != nil {
		return err
	}
	out, err := e.expectOutput(ctx, "root-works", "/usr/local-root")
	if got := slices.Sorted(slices.Values(splitLines(out))); err == nil && !slices.Equal(got, rootWorks(e.target)) {
		err = fmt.Errorf("root can %q below /usr, want %q", got, rootWorks(e.target))
	}
	return errors.Join(err, checkRootLayers(ctx, e), e.close(ctx))
}

// checkRootLayers asserts that root inside owns the files in an overlay of the
// workspace like those in the workspace itself.
func checkRootLayers(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "root-works", "root-works")
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && !strings.Contains(out, "chown") || !strings.Contains(out, "write") {
		return fmt.Errorf("root can %q in an overlay", splitLines(out))
	}
	if err := errors.Join(checkFilesOfRoot(ctx, e, filepath.Join(e.layersDir, "upper")), checkLayered(ctx, e)); err != nil {
		return fmt.Errorf("in an overlay: %w", err)
	}
	if names, err := os.ReadDir(e.workspace); err != nil || len(names) != 2 {
		return errorf("the workspace has %v (%w), want the probe and %s", names, err, foreignFile)
	}
	return nil
}

// foreignFile is root's, in another user's workspace.
const foreignFile = "foreign"

func plantForeign(e *env) error {
	return os.WriteFile(filepath.Join(e.workspace, foreignFile), []byte("foreign"), 0o600)
}

// checkRoot asserts that root inside can do what programs expect from root, and
// can't touch the kernel, the host's files or the guest.
func checkRoot(ctx context.Context, shared *env) (err error) {
	e, err := shared.startUser(ctx, "user-root", sandbox.UserRoot, shared.target.RootRefused, func(e *env) { e.plant = plantForeign })
	if e == nil || err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	for name, assert := range map[string]func(context.Context, *env) error{
		"identity": checkRootIdentity, "what root may": checkRootWorks, "system calls": checkRootCalls, "files of the kernel": checkKernelFiles,
		"files of the host": checkRootFiles, "set-user-ID": checkRootSetID, "the guest": checkRootGuest,
	} {
		if assertErr := assert(ctx, e); assertErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, assertErr))
		}
	}
	return errors.Join(err, checkRootEvasion(ctx, e))
}

func checkRootIdentity(ctx context.Context, e *env) error {
	f, err := e.readFacts(ctx)
	if err != nil {
		return err
	}
	set := fmt.Sprintf("%016x", wire.RootCapabilities)
	var wrong []error
	for name, got := range map[string]string{"CapPrm": f.CapPrm, "CapEff": f.CapEff, "CapBnd": f.CapBnd} {
		wrong = append(wrong, compareSetting(name, got, set))
	}
	a := e.sb.Attestation()
	return errors.Join(append(
		wrong, checkIDMaps(ctx, e),
		compareSetting("uid", f.EUID, 0), compareSetting("gid", f.EGID, 0), compareSetting("groups", f.Groups, 0),
		compareSetting("NoNewPrivs", f.NoNewPrivs, "1"), compareSetting("Seccomp", f.Seccomp, "2"),
		compareSetting("attested policy", a.UserPolicy, string(sandbox.UserRoot)), compareSetting("attested user", a.User, "0:0"),
		compareSetting("attested capabilities", len(a.Capabilities), len(harden.RootCapabilities())),
	)...)
}

// checkIDMaps asserts that root inside is not root outside, according to the
// attestation and to what the host shows of the container's first process. A
// sandbox's own kernel has no host IDs.
func checkIDMaps(ctx context.Context, e *env) error {
	if e.target.OwnKernel {
		return nil
	}
	pid, err := e.target.HostProcess(ctx, e.sb)
	if err != nil {
		return err
	}
	a := e.sb.Attestation()
	var wrong []error
	for name, attested := range map[string]string{"uid_map": a.UIDMap, "gid_map": a.GIDMap} {
		if host := strings.Fields(attested); len(host) != 3 || host[0] != "0" || host[1] == "0" {
			wrong = append(wrong, fmt.Errorf("its %s is %q, in which its root is root of the host", name, attested))
		}
		shown, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return err
		}
		wrong = append(wrong, compareSetting("attested "+name, attested, strings.Join(strings.Fields(string(shown)), " ")))
	}
	return errors.Join(wrong...)
}

// rootWorks are the expected lines of the probe's root-works. With one ID there
// is no other user to become, or to own files.
func rootWorks(target Target) []string {
	if target.SingleUID {
		return []string{"bind", "write"}
	}
	return []string{"bind", "chown", "setuid", "write"}
}

func checkRootWorks(ctx context.Context, e *env) error {
	for _, dir := range []string{"/tmp", sandbox.HomeDir} {
		out, err := e.expectOutput(ctx, "root-works", dir+"/root-works")
		if err != nil {
			return err
		}
		got := slices.Sorted(slices.Values(splitLines(out)))
		want := rootWorks(e.target)
		if dir == sandbox.HomeDir && e.sb.Attestation().Rootless { // on the host's disk, where this user owns everything
			want = slices.DeleteFunc(want, func(work string) bool { return work == "chown" })
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("positive control: root can %q in %s, want %q", got, dir, want)
		}
	}
	return nil
}

var rootMay = []string{"become uid 0", "become gid 0", "become uid 65534", "capset", "give a file away", "setgroups"}

func checkRootCalls(ctx context.Context, e *env) error {
	inside, err := parseOutput[map[string]string](e.expectOutput(ctx, "syscalls"))
	if err != nil {
		return err
	}
	if len(inside) < 100 {
		return fmt.Errorf("%d attempts", len(inside))
	}
	var wrong []error
	may := rootMay
	if e.target.OwnKernel { // the files are the sandbox's own kernel's
		may = append(slices.Clone(may), "write core_pattern", "write sysrq")
	}
	for _, name := range slices.Sorted(maps.Keys(inside)) {
		if got := inside[name]; got == "allowed" && !strings.HasPrefix(name, "control:") && !slices.Contains(may, name) && !isNoted(e, name) {
			wrong = append(wrong, fmt.Errorf("%s is allowed", name))
		}
	}
	return errors.Join(wrong...)
}

func checkRootFiles(ctx context.Context, e *env) error { return checkFilesOfRoot(ctx, e, e.workspace) }

// checkFilesOfRoot asserts that on the host root's files belong to the
// workspace's owner, other inside users' files to IDs without a user, and that
// files of the host's other users are closed inside. The host has the changed
// files in dir.
func checkFilesOfRoot(ctx context.Context, e *env, dir string) error {
	if _, err := e.expectOutput(ctx, "touch", "made-by-root"); err != nil {
		return err
	}
	owner, err := ownerOf(e.workspace)
	if err != nil {
		return err
	}
	made, err := ownerOf(filepath.Join(dir, "made-by-root"))
	if err != nil {
		return err
	}
	wrong := compareSetting("owner of a file that root made", made, owner)
	if os.Geteuid() != 0 {
		return wrong // all files are this user's
	}
	out, err := e.expectOutput(ctx, "exist", foreignFile)
	if err != nil {
		return err
	}
	written, err := e.expectOutput(ctx, "writable", foreignFile)
	if err != nil {
		return err
	}
	if strings.Contains(out+written, foreignFile) {
		wrong = errors.Join(wrong, errors.New("a file of root's of the host is open inside"))
	}
	// The owner on the host must be right whomever root gives the file to.
	if _, err := e.expectOutput(ctx, "chown-all", "made-by-root", foreignFile); err != nil {
		return err
	}
	for _, name := range []string{"made-by-root", foreignFile} {
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) && name == foreignFile && dir != e.workspace {
			continue // not in the layer
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		for kind, id := range map[string]uint32{"uid": st.Uid, "gid": st.Gid} {
			if name != foreignFile && id != uint32(ownerID) && id < 1<<20 || name == foreignFile && id != 0 {
				wrong = errors.Join(wrong, fmt.Errorf("%s has %s %d on the host", name, kind, id))
			}
		}
	}
	return wrong
}

// checkRootSetID tries to make files that would run as another user on the
// host.
func checkRootSetID(ctx context.Context, e *env) error {
	inside, err := parseOutput[map[string]string](e.expectOutput(ctx, "set-id", sandbox.WorkspaceDir+"/set-id"))
	if err != nil {
		return err
	}
	wrong := noSetID(e)
	for name, want := range setIDAnswers(inside) {
		if got := inside[name]; !slices.Contains(want, got) && hasSpecialBits(got) {
			wrong = errors.Join(wrong, fmt.Errorf("%s: %q, want one of %q", name, got, want))
		}
	}
	return wrong
}

func checkRootGuest(ctx context.Context, e *env) error {
	for _, verb := range []string{"attack-guest", "attack-threads"} {
		if err := e.expectAnswer(ctx, "", verb); err != nil {
			return err
		}
	}
	return e.sb.Ping(ctx)
}

// checkRootEvasion: a command kills the processes by which its own are found,
// drops its groups and leaves a daemon, which must die with the command.
func checkRootEvasion(ctx context.Context, e *env) error {
	marker := newMarker()
	if _, err := e.runProbe(ctx, "evade", marker); err != nil {
		return fmt.Errorf("evasion: %w", err)
	}
	n, err := e.countRunning(ctx, marker)
	if err != nil {
		return fmt.Errorf("after an evasion: %w", err)
	}
	if n != 0 {
		return fmt.Errorf("%d processes outlive the command that hid them", n)
	}
	return nil
}

func rootChecks() []check {
	return []check{
		{name: "the root of image host can't be writable", run: checkHostRoot},
		{name: "a writable root is the sandbox's own", writable: true, run: checkWritableRoot},
	}
}

// openDir is a directory in the image that commands may write to.
const openDir = "/opt/open"

// WriteOpenTree writes what the checks of a writable root expect of an image
// besides /bin/sh: a directory with two files, writable for every user.
func WriteOpenTree(root string) error {
	dir := filepath.Join(root, openDir)
	for _, d := range []string{filepath.Join(root, "usr"), filepath.Join(root, "etc"), dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"file", "victim"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("original\n"), 0o600), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o777)
}

func checkHostRoot(ctx context.Context, e *env) error {
	other := newEnv(e.target, filepath.Join(e.base, "host-root"))
	other.target.WritableImage = images.Reference{Scheme: images.SchemeHost}
	other.root = true
	return other.expectRefused(ctx, other.start(ctx, nil), sandbox.ErrUnsupported, "")
}

// checkWritableRoot changes all that a command can in a root, and looks for the
// changes in the next sandbox on the same image.
func checkWritableRoot(ctx context.Context, e *env) error {
	digest := e.target.ImageDigest
	if digest == nil {
		digest = func() (string, error) { return "", nil }
	}
	unchanged, err := digest()
	if err != nil {
		return err
	}
	first := newEnv(e.target, filepath.Join(e.base, "first-root"))
	before, err := scarRoot(ctx, first)
	if err != nil {
		return err
	}
	next := newEnv(e.target, filepath.Join(e.base, "next-root"))
	next.root = true
	if err := next.start(ctx, nil); err != nil {
		return err
	}
	after, err := next.expectOutput(ctx, "scars", openDir)
	if err = errors.Join(err, next.close(ctx)); err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("the next sandbox sees %q, the first one began with %q", after, before)
	}
	if now, err := digest(); err != nil || now != unchanged {
		return errorf("the image's files were changed (%w)", err)
	}
	return nil
}

// scarRoot starts a sandbox with a writable root, changes and destroys it, and
// returns what was there before.
func scarRoot(ctx context.Context, e *env) (before string, err error) {
	e.root = true
	if err := e.start(ctx, nil); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, e.close(ctx)) }()
	if at := e.sb.Attestation(); at.RootReadOnly {
		return "", errors.New("the root is attested to be read-only")
	} else if !isBounded(at) {
		return "", fmt.Errorf("the root is attested without a bound: %+v, lost %q", at.Mounts, at.Lost)
	}
	out, err := e.expectOutput(ctx, "writable", "/", "/etc", "/usr", "/.caisson", sandbox.GuestPath, "/sys", "/proc/sys/kernel", openDir, openDir+"/file",
		sandbox.WorkspaceDir)
	if err != nil {
		return "", err
	}
	want := openDir + "\n" + openDir + "/file\n" + sandbox.WorkspaceDir + "\n"
	if e.sb.Attestation().Rootless { // commands have the ID of the user who unpacked the image
		made := "/.caisson\n" // by the runtime in the user's layer
		if e.sb.Attestation().Isolation == sandbox.IsolationProcess {
			made = "" // by the sandbox's own root in its kernel
		}
		want = "/\n/etc\n/usr\n" + made + want
	}
	if out != want {
		return "", fmt.Errorf("writable: %q, want %q", out, want)
	}
	if before, err = e.expectOutput(ctx, "scars", openDir); err != nil {
		return "", err
	}
	done, err := e.expectOutput(ctx, "scar", openDir)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"write", "remove", "replace", "hard link", "closed", "deep", "many", "sparse"} {
		if !strings.Contains(done, name+"\n") {
			return "", fmt.Errorf("a command with a writable root can't do %q, only %q", name, splitLines(done))
		}
	}
	now, err := e.expectOutput(ctx, "scars", openDir)
	if err == nil && now == before {
		err = errors.New("positive control: nothing was changed")
	}
	return before, err
}

// isBounded reports whether the root is attested with a bound, or as having
// none.
func isBounded(at sandbox.Attestation) bool {
	return slices.ContainsFunc(at.Mounts, func(m sandbox.AttestedMount) bool { return m.Target == "/" && m.Bytes == sandbox.RootBytes }) ||
		slices.ContainsFunc(at.Lost, func(text string) bool { return strings.Contains(text, "root has no bound") })
}
