package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// BenchmarkIsolation compares gVisor without namespaces with gVisor with them and
// with the stock runsc, as an ordinary user: a first command in a new sandbox, a
// command in one that runs, and the memory of an idle one.
func BenchmarkIsolation(b *testing.B) {
	needBackend(b, "gvisor")
	if os.Getuid() != 0 {
		b.Skip("needs root, to be an ordinary user and to see its memory")
	}
	m := newMachine(b)
	m.become(b, jobUser, jobUser)
	m.workspace = filepath.Join(m.home, "workspace")
	if err := errors.Join(os.Mkdir(m.workspace, 0o755), os.Chown(m.workspace, jobUser, jobUser)); err != nil {
		b.Fatal(err)
	}
	run := func(argv ...string) (string, error) {
		cmd := exec.CommandContext(context.WithoutCancel(b.Context()), argv[0], argv[1:]...)
		cmd.Env, cmd.Dir, cmd.SysProcAttr = m.env, m.home, &syscall.SysProcAttr{Credential: m.user}
		out, err := cmd.Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%q: %w: %s", argv, err, exit.Stderr)
		}
		return strings.TrimSpace(string(out)), err
	}
	var sides []side
	add := func(name string, argv ...string) {
		sides = append(sides, side{name: name, op: func() error {
			_, err := run(argv...)
			return err
		}})
	}
	ids := map[string]string{}
	program := filepath.Join(binaries(b), "caisson")
	for name, isolation := range map[string]string{"": "process", "namespaces-": "namespaces"} {
		flags := []string{"--workspace", m.workspace, "--backend", "gvisor", "--isolation", isolation}
		id, err := run(append([]string{program, "sandbox", "create"}, flags...)...)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if out, err := run(program, "sandbox", "rm", id); err != nil {
				b.Error(out, err)
			}
		})
		ids[name] = "caisson-" + id
		add(name+"start-", append(append([]string{program, "exec"}, flags...), "--", "true")...)
		add(name+"command-", program, "sandbox", "exec", id, "--", "true")
	}
	stock := filepath.Join(m.home, "runsc")
	if err := copyIfThere(filepath.Join("..", "bin", "runsc-stock"), stock); err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(stock); err != nil {
		b.Logf("the peer is missing: %v", err)
	} else {
		plain := []string{stock, "--rootless", "--network=none", "--ignore-cgroups", "--root", filepath.Join(m.home, "runsc-state")}
		const idle = "plain-idle"
		// It must not keep the pipe of its output open.
		quiet := []string{"sh", "-c", `"$@" >/dev/null 2>&1 </dev/null`, "sh"}
		if _, err := run(slices.Concat(quiet, plain, []string{"run", "--detach", "--bundle", m.stockBundle(b, "sleep", "3600"), idle})...); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if out, err := run(append(plain, "delete", "--force", idle)...); err != nil {
				b.Error(out, err)
			}
		})
		ids["stock-"] = idle
		add("stock-start-", append(plain, "run", "--bundle", m.stockBundle(b, "true"), "plain-start")...)
		add("stock-command-", append(plain, "exec", idle, "/usr/bin/true")...)
	}
	compare(b, sides...)
	for name, id := range ids {
		total, processes := memoryOf(b, []string{id})
		if processes == 0 {
			b.Errorf("%s: no process is found", id)
		}
		b.ReportMetric(float64(total), name+"bytes")
	}
}

// stockBundle makes a bundle with the host's programs, which runs one of them.
func (m *machine) stockBundle(b *testing.B, program string, args ...string) string {
	b.Helper()
	dir := filepath.Join(m.home, "bundle-"+program)
	rootfs := filepath.Join(dir, "rootfs")
	var errs []error
	for _, name := range []string{"usr", "proc", "dev", "tmp"} {
		errs = append(errs, os.MkdirAll(filepath.Join(rootfs, name), 0o755))
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		errs = append(errs, os.Symlink("usr/"+link, filepath.Join(rootfs, link)))
	}
	config, err := json.Marshal(specs.Spec{
		Version: "1.0.0", Root: &specs.Root{Path: rootfs, Readonly: true},
		Process: &specs.Process{Args: append([]string{"/usr/bin/" + program}, args...), Env: []string{"PATH=/usr/bin"}, Cwd: "/"},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"bind", "ro"}}},
		Linux:   &specs.Linux{},
	})
	if err := errors.Join(append(errs, err, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))...); err != nil {
		b.Fatal(err)
	}
	return dir
}
