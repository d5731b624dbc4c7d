// Package s3 runs the tests of stores of results against an S3 service that has other
// authors.
package s3

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// program builds the versitygw, which is part of the module's tools.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "caisson-s3-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "versitygw")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/versity/versitygw/cmd/versitygw").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

// build returns the path of the program.
func build(t *testing.T) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runTests runs tests of Caisson's module, and fails unless all of a list have passed.
func runTests(t *testing.T, args, env []string, names ...string) {
	t.Helper()
	test := exec.Command("go", append([]string{"test", "-count=1", "-v"}, args...)...)
	test.Dir = filepath.Join("..", "..")
	test.Env = append(os.Environ(), env...)
	out, err := test.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), fmt.Sprintf("--- PASS: %s ", name)) {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
}

// TestBatch runs a batch whose results are in a bucket, with the built programs.
func TestBatch(t *testing.T) {
	runTests(t, []string{"-tags", "s3", "-run", "^TestBatchBucket$", "./e2e"}, []string{"CAISSON_TEST_S3_PROGRAM=" + build(t)}, "TestBatchBucket")
}

// TestStore starts the service with a bucket, and runs the tests of the stores on it.
func TestStore(t *testing.T) {
	program := build(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "test"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "--access", "test", "--secret", "secret", "--port", address, "posix", root)
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	waitListening(t, address)
	runTests(t, []string{"./runner/batch/results"}, []string{"CAISSON_TEST_S3=s3://test", "AWS_ENDPOINT_URL=http://" + address, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=us-east-1"},
		"TestStore/s3", "TestOneWins/s3", "TestInterrupted/s3")
}

// waitListening waits until a server accepts connections.
func waitListening(t *testing.T, address string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			return
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("the S3 service does not listen")
		}
	}
}
