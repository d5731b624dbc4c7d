//go:build s3

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/caisson-run/caisson/runner/batch"
)

// s3Program names the versitygw that the test starts.
const s3Program = "CAISSON_TEST_S3_PROGRAM"

// bucketService is an S3 service that has other authors, behind a proxy that makes it fail.
type bucketService struct {
	t       *testing.T
	address string // of the service
	root    string
	proxy   *httptest.Server
	process *exec.Cmd

	requests, faults atomic.Int64
	mode             atomic.Value // string
}

// The modes of a bucketService.
const (
	sound         = "sound"
	forbidden     = "forbidden"
	unconditional = "unconditional" // it pretends to have replaced objects
	faulty        = "faulty"        // requests fail in turn
)

func startBucket(t *testing.T) *bucketService {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bucketService{t: t, address: l.Addr().String(), root: t.TempDir()}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.mode.Store(sound)
	if err := os.Mkdir(filepath.Join(b.root, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: b.address})
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if b.mode.Load() == unconditional && r.StatusCode == http.StatusPreconditionFailed {
				r.StatusCode, r.Status = http.StatusOK, "200 OK"
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	b.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := b.requests.Add(1)
		refuse := func(status int, code string) {
			b.faults.Add(1)
			w.WriteHeader(status)
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
		}
		mode := b.mode.Load()
		switch {
		case mode == forbidden, mode == faulty && n%13 == 0:
			refuse(http.StatusForbidden, "AccessDenied")
		case mode == faulty && n%11 == 0:
			refuse(http.StatusServiceUnavailable, "SlowDown")
		case mode == faulty && n%17 == 0 && r.Method == http.MethodPut:
			refuse(http.StatusInsufficientStorage, "XMinioStorageFull")
		case mode == faulty && n%3 == 0 && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/trials/"):
			b.faults.Add(1)
			w.Header().Set("Content-Length", "100000") // and the connection ends before
			_, _ = io.WriteString(w, "\x1f\x8b\x08")
		default:
			if mode == faulty && n%7 == 0 {
				time.Sleep(300 * time.Millisecond)
			}
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(b.proxy.Close)
	b.start()
	t.Cleanup(b.kill)
	return b
}

// start starts the service, and waits until it listens.
func (b *bucketService) start() {
	b.t.Helper()
	b.process = exec.Command(os.Getenv(s3Program), "--access", "test", "--secret", "very-secret", "--port", b.address, "posix", b.root)
	if err := b.process.Start(); err != nil {
		b.t.Fatal(err)
	}
	eventually(b.t, "the service listens", 30*time.Second, func() bool {
		c, err := net.Dial("tcp", b.address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

func (b *bucketService) kill() {
	_ = b.process.Process.Kill()
	_ = b.process.Wait()
}

// awaitResults waits until a batch has n results. It calls do meanwhile.
func (m *machine) awaitResults(t *testing.T, out string, n int, do ...func()) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d results", n), 2*time.Minute, func() bool {
		for _, f := range do {
			f()
		}
		list, err := batch.ReadResults(m.batchDir(out))
		return err == nil && len(list) >= n
	})
}

// TestBatchBucket runs a batch whose results are in a bucket that fails at times. The
// coordinator, a worker and the service are killed and started again: the results are those
// of one machine, each once. A bucket that would lose results is refused.
func TestBatchBucket(t *testing.T) {
	needBackend(t, "gvisor")
	queue := startQueue(t, &natsserver.Options{Username: "user", Password: "queue-secret"})
	b := startBucket(t)
	m := newMachine(t)
	m.env = append(m.env, "AWS_ENDPOINT_URL="+b.proxy.URL, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=very-secret", "AWS_REGION=us-east-1")
	tasks, model, want := m.fleetTasks(t, 8)
	place := []string{"--nats", "nats://user:queue-secret@" + queue.Addr().String(), "--results", "s3://bucket/runs/one"}
	coordinate := slices.Concat([]string{"batch", "--backend", "gvisor", "--model", model, "--out", m.batchDir("out"), "--worker-timeout", "3s"}, place, []string{tasks})
	work := func(i int) *running {
		return m.start(t, slices.Concat([]string{"batch", "worker", "--out", m.batchDir(fmt.Sprint("worker", i)), "--parallel", "1"}, place)...)
	}
	kill := func(r *running) {
		t.Helper()
		r.kill(t)
	}

	for mode, text := range map[string]string{forbidden: "AccessDenied", unconditional: "does not refuse to replace"} {
		b.mode.Store(mode)
		for _, args := range [][]string{coordinate, slices.Concat([]string{"batch", "worker", "--out", m.batchDir("refused")}, place)} {
			out := m.run(t, args...)
			out.want(t, 52)
			if !strings.Contains(out.stderr, text) || strings.Contains(out.stderr, "secret") {
				t.Errorf("%s: %s", mode, out.stderr)
			}
		}
	}
	b.mode.Store(sound)
	workers := []*running{work(0), work(1)}
	first := m.start(t, coordinate...)
	m.awaitResults(t, "out", 1)
	b.mode.Store(faulty)
	kill(workers[1])
	kill(first)
	again := func() *running { return m.start(t, coordinate...) }
	workers[1], first = work(1), again()
	// The service may refuse the first of their requests. On a busy machine, that is known late.
	revive := func(r **running, start func() *running, done int) {
		select {
		case <-(*r).ended:
			if out := (*r).wait(t, time.Second); out.status != done {
				t.Logf("started again: %d %s", out.status, out.stderr)
				*r = start()
			}
		default:
		}
	}
	m.awaitResults(t, "out", 3, func() {
		revive(&workers[1], func() *running { return work(1) }, 0)
		revive(&first, again, 60)
	})
	b.kill()
	time.Sleep(time.Second)
	b.start()
	ended := first.wait(t, 4*time.Minute)
	ended.want(t, 60)
	b.mode.Store(sound)
	texts := ended.stdout + ended.stderr
	for _, w := range workers {
		out := w.wait(t, time.Minute)
		out.want(t, 0)
		texts += out.stdout + out.stderr
	}
	if strings.Contains(texts, "secret") {
		t.Errorf("a secret is printed:\n%s", texts)
	}
	m.wantResults(t, "out", want)
	t.Logf("%d of %d requests failed", b.faults.Load(), b.requests.Load())
}
