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
	"testing"
	"time"
)

// TestStore starts a versitygw, which is part of the module's tools, with a bucket, and runs
// the tests of the stores on it.
func TestStore(t *testing.T) {
	program := filepath.Join(t.TempDir(), "versitygw")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/versity/versitygw/cmd/versitygw").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
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
	test := exec.Command("go", "test", "-count=1", "-v", "./runner/batch/results")
	test.Dir = filepath.Join("..", "..")
	test.Env = append(os.Environ(), "CAISSON_TEST_S3=s3://test", "AWS_ENDPOINT_URL=http://"+address, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=us-east-1")
	out, err := test.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"TestStore/s3", "TestOneWins/s3", "TestInterrupted/s3"} {
		if !strings.Contains(string(out), fmt.Sprintf("--- PASS: %s ", name)) {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
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
