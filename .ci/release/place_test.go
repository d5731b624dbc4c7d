//go:build release

package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// newcomer is the ordinary user who installs Caisson.
const newcomer = 10001

// place is where somebody installs Caisson: a machine, or a container of a CI job, with a root file system whose
// changes end with it.
type place struct {
	root string
	// job is whether it is a container, in which no namespaces can be made.
	job bool
	// user runs the script, in a home of their own.
	user int
	// files are directories that the place sees.
	files map[string]string
}

// run runs a script there, after another one of root's, and returns what they print.
func (p place) run(t *testing.T, asRoot, script string, env ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	// The namespaces end with their first process, and mounts with them.
	const begin = `
mount --make-rprivate /
mount -t tmpfs -o mode=755 place "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o "lowerdir=$2,upperdir=upper,workdir=work" place root
mkdir -p root/home/newcomer root/files
rm -rf root/etc/apt/sources.list root/etc/apt/sources.list.d
mkdir root/etc/apt/sources.list.d
chown 10001:10001 root/home/newcomer
`
	const machine = `
cd root
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs -o ro sys sys
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs run run
mkdir -p old
pivot_root . old # in a chroot nothing can make a user namespace
umount --lazy old
`
	var binds strings.Builder
	for name, from := range p.files {
		fmt.Fprintf(&binds, "mkdir -p root/files/%s\nmount --bind '%s' root/files/%[1]s\n", name, from)
	}
	home := "/home/newcomer"
	if p.user == 0 {
		home = "/root"
	}
	env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + home, "LANG=C.UTF-8", "TERM=dumb"}, env...)
	text := begin + binds.String()
	if p.job {
		if runtime.GOARCH != "amd64" {
			t.Skip("the seccomp profile is for amd64")
		}
		config, err := json.Marshal(p.container(t, append(env, "SCRIPT="+script), "cd; "+asRoot+"\nexec sh -euc \"$SCRIPT\""))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		text += "cp \"$3/config.json\" .\nexec runc --root \"$3/runc\" run caisson-test-" + rand.Text() + "\n"
	} else {
		text += machine + asRoot + "\n" + fmt.Sprintf(`cd %s; exec setpriv --reuid=%d --regid=%[2]d --clear-groups sh -euc "$SCRIPT"`, home, p.user)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount-proc", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "sh", "-euc", text, "sh", filepath.Join(dir, "place"), p.root, dir)
	cmd.Env = append(env, "SCRIPT="+script)
	if err := os.Mkdir(filepath.Join(dir, "place"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// container returns the configuration of a job's container, as Docker makes it: root with Docker's capabilities, or a
// user with none and a read-only root. It has containerd's seccomp profile, and this machine's network.
func (p place) container(t *testing.T, env []string, script string) map[string]any {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "runc", "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("runc spec: %v: %s", err, out)
	}
	var config map[string]any
	var profile any
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err == nil {
		text, err = os.ReadFile("../../e2e/testdata/seccomp-containerd.json")
	}
	if err == nil {
		err = json.Unmarshal(text, &profile)
	}
	if err != nil {
		t.Fatal(err)
	}
	capabilities := []string{}
	if p.user == 0 {
		for _, name := range strings.Fields("CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE") {
			capabilities = append(capabilities, "CAP_"+name)
		}
	}
	process := config["process"].(map[string]any)
	for key, value := range map[string]any{
		"terminal": false, "args": []string{"sh", "-euc", script}, "env": env, "cwd": "/", "noNewPrivileges": p.user != 0,
		"user":         map[string]int{"uid": p.user, "gid": p.user},
		"capabilities": map[string]any{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
	} {
		process[key] = value
	}
	config["root"] = map[string]any{"path": "root", "readonly": p.user != 0}
	linux := config["linux"].(map[string]any)
	linux["seccomp"] = profile
	linux["namespaces"] = []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}}
	if p.user != 0 {
		mount := func(at, mode string) any {
			return map[string]any{"destination": at, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=" + mode, fmt.Sprintf("uid=%d", p.user)}}
		}
		config["mounts"] = append(config["mounts"].([]any), mount("/tmp", "1777"), mount("/home/newcomer", "755"))
	}
	return config
}

// unpackImage unpacks the image of this architecture.
func unpackImage(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	sh(t, dir, "mkdir oci root && tar -xf "+file+" -C oci")
	index, manifests := readImage(t, filepath.Join(dir, "oci"), testVersion)
	image, err := index.Image(manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(image)
	unpack := exec.CommandContext(t.Context(), "tar", "--numeric-owner", "-xpf", "-", "-C", root)
	unpack.Stdin = files
	if out, err := unpack.CombinedOutput(); errors.Join(err, files.Close()) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}
