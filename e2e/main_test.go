package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/egresstest"
)

// shared is the folder that holds what all tests use: the binaries and the
// model server. Every user may read it, because some tests run as another.
var shared = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "caisson-e2e-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
})

func TestMain(m *testing.M) {
	if config := os.Getenv(natsConfig); config != "" {
		if err := runNATS(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	run := m.Run
	if egresstest.InNamespace() {
		run = func() int { return egresstest.Main(m) }
	}
	status := run()
	dir, err := shared()
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "remove the tests' folder:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// binaries gives a folder that holds caisson, caisson-guest and, where it has
// been built, runsc: copies of those in E2E_BIN if it is set, else made
// here, once.
func binaries(t testing.TB) string {
	t.Helper()
	dir, err := builtOnce()
	if err != nil {
		t.Fatalf("build caisson: %v", err)
	}
	return dir
}

var builtOnce = sync.OnceValues(func() (string, error) {
	dir, err := shared()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	from := os.Getenv("E2E_BIN")
	if from == "" {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Minute, errors.New("go build takes too long"))
		defer cancel()
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", bin+"/", "./cmd/caisson", "./cmd/caisson-guest")
		build.Dir = ".."
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		return bin, copyIfThere(filepath.Join("..", "bin", "runsc"), filepath.Join(bin, "runsc"))
	}
	for _, name := range []string{"caisson", "caisson-guest", "runsc"} {
		if err := copyIfThere(filepath.Join(from, name), filepath.Join(bin, name)); err != nil {
			return "", err
		}
	}
	return bin, nil
})

// copyIfThere copies a program; one that is not there is left out.
func copyIfThere(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
