package server

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	guestarchive "github.com/caisson-run/caisson/sandbox/guest/archive"
)

// filesPath returns the URL's path of a sandbox's files.
func filesPath(id, file string) string {
	return "/sandboxes/" + id + "/files?path=" + url.QueryEscape(file)
}

// newFiles starts a server with one sandbox, and returns the sandbox's
// directory.
func newFiles(t *testing.T, change ...func(*Options)) (w *testEnv, id, dir string) {
	t.Helper()
	w = newTestEnv(t, "  - text: Never asked.\n", change...)
	id = w.startSandbox("{}").ID
	return w, id, sessiondir.WorkspacePath(w.state, id)
}

// tarOf returns an archive of these entries. Regular files contain their own
// names.
func tarOf(t *testing.T, list ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		h.Mode |= 0o755
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.WriteString(w, h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// commandsEnded returns the ends of a sandbox's commands, except the first.
func (w *testEnv) commandsEnded(id string) (list []record.UserCommandEnded) {
	w.t.Helper()
	for _, r := range w.trace(id) {
		if r.Kind == record.KindUserCommandEnded {
			list = append(list, payload[record.UserCommandEnded](w.t, r))
		}
	}
	return list[1:]
}

// TestFiles copies one file and a tree in and out, byte for byte, on one
// connection.
func TestFiles(t *testing.T) {
	w, id, dir := newFiles(t)
	content := strings.Repeat("0123456789abcdef", 40<<10)
	for _, name := range []string{"f", "./g", "f", "with space\n", "\xff\xfe", strings.Repeat("n", 255)} {
		w.do(aliceToken, "PUT", filesPath(id, name), content, "Content-Type", fileType).requireStatus(t, 204)
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
			t.Errorf("%q has %d bytes, %v", name, len(got), err)
		}
		a := w.get(filesPath(id, name)).requireStatus(t, 200)
		if a.text != content || a.header.Get("Content-Length") != fmt.Sprint(len(content)) || a.header.Get("Content-Type") != fileType {
			t.Errorf("%q: %d bytes, %v", name, len(a.text), a.header)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "f")); err != nil || info.Mode() != 0o644 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	w.do(aliceToken, "PUT", filesPath(id, "empty"), "", "Content-Type", fileType).requireStatus(t, 204)
	if a := w.get(filesPath(id, "empty")).requireStatus(t, 200); a.text != "" || a.header.Get("Content-Length") != "0" {
		t.Errorf("an empty file: %q, %v", a.text, a.header)
	}
	text := tarOf(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, tar.Header{Typeflag: tar.TypeReg, Name: "d/x"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "/etc/passwd"})
	w.do(aliceToken, "PUT", filesPath(id, "."), text, "Content-Type", archiveType).requireStatus(t, 204)
	for path, want := range map[string]string{"d": "d/ d/l d/x", "d/.": "./ l x", "./d": "d/ d/l d/x", "d/x": "x"} {
		a := w.do(aliceToken, "GET", filesPath(id, path), "", "Accept", archiveType).requireStatus(t, 200)
		var names []string
		r := tar.NewReader(strings.NewReader(a.text))
		h, err := r.Next()
		for ; err == nil; h, err = r.Next() {
			names = append(names, h.Name)
		}
		if got := strings.Join(names, " "); got != want || !errors.Is(err, io.EOF) || a.header.Get("Content-Type") != archiveType {
			t.Errorf("%s: %q, %v, %v, want %q", path, got, err, a.header, want)
		}
	}
	if a := w.do(aliceToken, "HEAD", filesPath(id, "f"), "").requireStatus(t, 200); a.header.Get("Content-Length") != fmt.Sprint(len(content)) || a.text != "" {
		t.Errorf("HEAD: %v %q", a.header, a.text)
	}
	w.do(bobToken, "GET", filesPath(id, "f"), "").requireStatus(t, 200)
	started := w.trace(id)
	if last := payload[record.UserCommandStarted](t, started[len(started)-2]); last.Client != "http:bob" {
		t.Errorf("recorded as a command of %q", last.Client)
	}
	for _, c := range w.commandsEnded(id) {
		if c.Code != 0 || c.Error != "" {
			t.Errorf("recorded %+v", c)
		}
	}
	// Keep-alive: after reading the whole body, an answer leaves the connection
	// open.
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}}
	defer client.CloseIdleConnections()
	for range 2 {
		for method, path := range map[string]string{"PUT": "f", "GET": "f"} {
			body, header := "text", []string{"Content-Type", fileType}
			if method == "GET" {
				body, header = "", nil
			}
			if a, err := send(t.Context(), client, w.base, aliceToken, method, filesPath(id, path), body, header...); err != nil || a.status >= 300 {
				t.Errorf("%s on the same connection: %+v, %v", method, a, err)
			}
		}
	}
}

// A client that sends its whole body before it reads gets the response to a request that
// was refused early: the connection is not reset meanwhile.
func TestRefusedBodyIsReceived(t *testing.T) {
	w, id, _ := newFiles(t, func(o *Options) { o.MaxTransfer = 100 << 10 })
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 100<<10 + 1
	_, err = fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", filesPath(id, "f"), aliceToken, fileType, size)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if _, err := in.Peek(1); err != nil { // the server has refused
		t.Fatal(err)
	}
	for sent := 0; sent < size; {
		n, err := conn.Write(make([]byte, min(30<<10, size-sent)))
		if err != nil {
			t.Fatalf("after %d bytes of %d: %v", sent, size, err)
		}
		sent += n
		time.Sleep(10 * time.Millisecond)
	}
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(text), "too_large") {
		t.Errorf("%d %s, %v", res.StatusCode, text, err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the response: %v, want its end", err)
	}
}

// A file that can't be copied is a problem that names it, and each request runs
// at most one command.
func TestFilesRefused(t *testing.T) {
	w, id, dir := newFiles(t, func(o *Options) { o.MaxTransfer = 100 << 10 })
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.Mkdir(outside, 0o755), os.Mkdir(filepath.Join(dir, "d"), 0o755), os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o644),
		os.Symlink(outside, filepath.Join(dir, "l")), os.Symlink("f", filepath.Join(dir, "lf")), unix.Mkfifo(filepath.Join(dir, "p"), 0o644),
		os.WriteFile(filepath.Join(dir, "big"), make([]byte, 200<<10), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	reg := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	for _, c := range []struct {
		method, path, kind, body string
		status                   int
		code                     string
	}{
		{"GET", "none", "", "", 404, "no_file"},
		{"GET", "none", archiveType, "", 404, "no_file"},
		{"GET", "f/none", "", "", 404, "no_file"},
		{"GET", "d", "", "", 409, "not_a_file"},
		{"GET", "lf", "", "", 409, "not_a_file"},
		{"GET", "p", "", "", 409, "not_a_file"},
		{"GET", "p", archiveType, "", 409, "not_a_file"},
		{"GET", "big", "", "", 413, "too_large"},
		{"GET", "f", "text/html", "", 406, "not_acceptable"},
		{"GET", "", "", "", 422, "invalid"},
		{"GET", "a\x00b", "", "", 422, "invalid"},
		{"GET", strings.Repeat("a", 4097), "", "", 422, "invalid"},
		{"PUT", "a\x00b", fileType, "x", 422, "invalid"},
		{"PUT", "none/f", fileType, "x", 404, "no_directory"},
		{"PUT", "f/x", fileType, "x", 404, "no_directory"},
		{"PUT", "p/x", fileType, "x", 404, "no_directory"},
		{"PUT", "none", archiveType, tarOf(t, reg("x")), 404, "no_directory"},
		{"PUT", "d/", fileType, "x", 422, "invalid"},
		{"PUT", "d/..", fileType, "x", 422, "invalid"},
		{"PUT", "d", fileType, "x", 422, "archive"},
		{"PUT", "f", "text/plain", "x", 415, "content_type"},
		{"PUT", "f", "application/json", "{}", 415, "content_type"},
		{"PUT", "f", "application/x-tar, " + fileType, "x", 415, "content_type"},
		{"PUT", "f", fileType, strings.Repeat("x", 100<<10+1), 413, "too_large"},
		{"PUT", ".", archiveType, tarOf(t, reg("l/x")), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, reg("../x")), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, reg("/tmp/x")), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, tar.Header{Typeflag: tar.TypeFifo, Name: "q"}), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "f"}), 422, "archive"},
		{"PUT", ".", archiveType, "no archive" + strings.Repeat("x", 1000), 422, "archive"},
		{"PUT", ".", archiveType, tarOf(t, reg("xyz"))[:513], 422, "archive"},
	} {
		before := len(w.trace(id))
		header := []string{"Content-Type", c.kind}
		if c.method == "GET" {
			header[0] = "Accept"
		}
		if c.kind == "" {
			header = nil
		}
		a := w.do(aliceToken, c.method, filesPath(id, c.path), c.body, header...)
		var p Problem
		if a.decodeInto(t, &p); a.status != c.status || p.Code != c.code || p.Detail == "" || a.header.Get("Content-Type") != problemType {
			t.Errorf("%s %.20q as %s: %d %s, want %d %s", c.method, c.path, c.kind, a.status, a.text, c.status, c.code)
		}
		if n := len(w.trace(id)) - before; n > 2 {
			t.Errorf("%s %.20q made %d records", c.method, c.path, n)
		}
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("written through a symlink: %v, %v", list, err)
	}
	for _, query := range []string{"", "?path=f&path=d", "?path=f&x=1"} {
		w.get("/sandboxes/"+id+"/files"+query).requireProblem(t, 422, "invalid")
	}
	w.get(filesPath("ses_00000000000000000000000000", "f")).requireProblem(t, 404, "no_sandbox")
	w.get(filesPath(w.startSession("bind"), "f")).requireProblem(t, 404, "no_sandbox")
	w.do(aliceToken, "DELETE", "/sandboxes/"+id, "").requireStatus(t, 200)
	w.get(filesPath(id, "f")).requireProblem(t, 410, "ended")
	w.do(aliceToken, "PUT", filesPath(id, "f"), "x", "Content-Type", fileType).requireProblem(t, 410, "ended")
}

// rawPut returns an upload request as text, up to its body.
func rawPut(id, path, kind, framing string) string {
	return "PUT " + filesPath(id, path) + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\nContent-Type: " + kind + "\r\n" + framing + "\r\n\r\n"
}

// A body that ends too soon, pauses, or is too large ends the command as
// cancelled. The control is the same body, whole.
func TestUnfinishedUploads(t *testing.T) {
	bounded := func(o *Options) { o.MaxTransfer = 64 << 10 }
	w, id, dir := newFiles(t, bounded)
	hasty, hastyID, _ := newFiles(t, bounded, func(o *Options) { o.copyTime = 50 * time.Millisecond })
	whole := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "a"}, tar.Header{Typeflag: tar.TypeReg, Name: "b"})
	between := whole[:1024] // an archive too, of one entry
	chunked := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	for name, c := range map[string]struct {
		request string
		closes  bool // the client closes the connection
		status  int
		code    string
	}{
		"the file of an announced length, cut":   {rawPut(id, "f", fileType, "Content-Length: 1000") + "half", true, 0, ""},
		"an archive cut between entries":         {rawPut(id, ".", archiveType, fmt.Sprintf("Content-Length: %d", len(whole))) + between, true, 0, ""},
		"an archive in chunks, cut":              {rawPut(id, ".", archiveType, "Transfer-Encoding: chunked") + chunked(between), true, 0, ""},
		"a broken chunk":                         {rawPut(id, ".", archiveType, "Transfer-Encoding: chunked") + chunked(between) + "zz\r\n", false, 400, "malformed"},
		"a pause":                                {rawPut(hastyID, ".", archiveType, fmt.Sprintf("Content-Length: %d", len(whole))) + between, false, 408, "too_slow"},
		"no body at all":                         {rawPut(hastyID, "f", fileType, "Content-Length: 5"), false, 408, "too_slow"},
		"more than the bound, in chunks":         {rawPut(id, ".", archiveType, "Transfer-Encoding: chunked") + chunked(whole[:2048]+strings.Repeat("\x00", 70<<10)), false, 413, "too_large"},
		"more than the bound, in a known length": {rawPut(id, ".", archiveType, "Content-Length: 70000"), false, 413, "too_large"},
		"a file of an unknown length":            {rawPut(id, "f", fileType, "Transfer-Encoding: chunked") + chunked("x") + "0\r\n\r\n", false, 411, "length"},
		"two lengths":                            {rawPut(id, "f", fileType, "Content-Length: 1\r\nContent-Length: 2") + "x", false, 400, ""},
		"the control, with a length":             {rawPut(id, "c", fileType, "Content-Length: 4") + "text", false, 204, ""},
		"the control, in chunks":                 {rawPut(id, ".", archiveType, "Transfer-Encoding: chunked") + chunked(between) + chunked(whole[1024:]) + "0\r\n\r\n", false, 204, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := w, id
			if c.code == "too_slow" {
				w, id = hasty, hastyID
			}
			before := len(w.commandsEnded(id))
			if c.closes {
				conn, _ := w.dial(c.request)
				conn.Close()
			} else if a := w.exchangeRaw(c.request); a.status != c.status || !strings.Contains(a.text, c.code) {
				t.Errorf("%d %s, want %d %s", a.status, a.text, c.status, c.code)
			}
			ran := c.closes || c.code == "too_slow" || c.code == "malformed" || c.status == 204 || strings.HasSuffix(name, "in chunks")
			for ran && len(w.commandsEnded(id)) == before {
				runtime.Gosched()
			}
			for _, e := range w.commandsEnded(id)[before:] {
				if !ran || e.Cancelled != (c.status != 204) {
					t.Errorf("the command ended with %+v", e)
				}
			}
		})
	}
	if got, err := os.ReadFile(filepath.Join(dir, "c")); string(got) != "text" {
		t.Errorf("the control: %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "b")); string(got) != "b" {
		t.Errorf("the control: %q, %v", got, err)
	}
	for _, w := range []*testEnv{w, hasty} {
		for w.openStreams() > 0 { // they are released
			runtime.Gosched()
		}
	}
}

// pausingBody is a request's body that pauses too long. As in net/http, the
// request's context ends before the read fails, and the request's command ends
// before the read returns.
type pausingBody struct {
	request context.CancelFunc
	command <-chan struct{}
}

func (b pausingBody) Read([]byte) (int, error) {
	b.request()
	<-b.command
	return 0, os.ErrDeadlineExceeded
}

// If the failed read of a body cancelled the command, its end is not taken for
// a normal one. The control is a command that ends by itself.
func TestUploadFailsBeforeItsReadReturns(t *testing.T) {
	for _, cancelled := range []bool{true, false} {
		request, cancel := context.WithCancel(t.Context())
		if !cancelled {
			cancel = func() {}
		}
		b := &uploadBody{wire: http.NewResponseController(deadlineRecorder{}), cancel: func(error) {}, ended: make(chan struct{})}
		reading := make(chan struct{})
		b.body = pausingBody{request: func() { cancel(); close(reading) }, command: b.ended}
		go func() { _, _ = b.Read(nil) }()
		<-reading
		if err := b.finish(request.Err() != nil); isTimeout(err) != cancelled {
			t.Errorf("cancelled %t: the upload ended with %v", cancelled, err)
		}
		cancel()
	}
}

// A command that fails, whatever it has written by then, never makes an answer
// that looks whole. The control is the same command with status 0.
func TestCutDownloads(t *testing.T) {
	w, id, _ := newFiles(t)
	const long = 300 << 10
	for _, size := range []int{10, heldBytes - 2048, heldBytes, long} {
		var b bytes.Buffer
		in := tar.NewWriter(&b)
		if err := in.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Size: int64(size), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(bytes.Repeat([]byte("x"), size)); err != nil {
			t.Fatal(err)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			sent   int // bytes of the archive
			status sandbox.ExitStatus
			whole  bool
		}{
			"the control":       {b.Len(), sandbox.ExitStatus{}, true},
			"failed at the end": {b.Len(), sandbox.ExitStatus{Code: 1}, false},
			"killed halfway":    {512 + size/2, sandbox.ExitStatus{Code: -1, Signal: 9}, false},
			"timed out":         {b.Len(), sandbox.ExitStatus{Code: -1, Signal: 15, TimedOut: true}, false},
		} {
			w.backend.mu.Lock()
			w.backend.transfer = func(_ context.Context, cmd sandbox.Command) sandbox.ExitStatus {
				_, _ = cmd.Stdout.Write(b.Bytes()[:c.sent])
				return c.status
			}
			w.backend.mu.Unlock()
			for kind, want := range map[string]int{fileType: size, archiveType: b.Len()} {
				a, err := send(t.Context(), http.DefaultClient, w.base, aliceToken, "GET", filesPath(id, "f"), "", "Accept", kind)
				whole := err == nil && a.status == 200 && len(a.text) == want
				problem := err == nil && a.status == 409 && a.header.Get("Content-Type") == problemType && strings.Contains(a.text, "not_copied")
				cut := errors.Is(err, io.ErrUnexpectedEOF) && a.status == 200 && len(a.text) < want
				if c.whole != whole || !c.whole && problem == cut {
					t.Errorf("%s of %d bytes as %s: %d, %d bytes, %v", name, size, kind, a.status, len(a.text), err)
				}
			}
		}
	}
	// An archive has to end visibly.
	for kind, want := range map[string]int{fileType: 200, archiveType: 505} {
		if got, _ := w.sendRaw("GET " + filesPath(id, "f") + " HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\nAccept: " + kind + "\r\n\r\n"); got != want && (want != 200 || got != 409) {
			t.Errorf("HTTP/1.0 as %s: %d, want %d", kind, got, want)
		}
	}
}

// The packing command's output may be anything, since commands of the same user
// can change it.
func TestHostilePacks(t *testing.T) {
	w, id, _ := newFiles(t, func(o *Options) { o.MaxTransfer = 1 << 20 })
	sparse := []byte(tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "file", Format: tar.FormatGNU})[:512])
	sparse[156] = tar.TypeGNUSparse
	copy(sparse[483:], "77777777777\x00") // the size with its holes
	copy(sparse[148:156], "        ")
	sum := 0
	for _, c := range sparse {
		sum += int(c)
	}
	copy(sparse[148:156], fmt.Sprintf("%06o\x00 ", sum))
	empty := tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "", Format: tar.FormatUSTAR})[:512]
	endless := func(cmd sandbox.Command) {
		for err := error(nil); err == nil; {
			_, err = cmd.Stdout.Write(make([]byte, 32<<10))
		}
	}
	for name, write := range map[string]func(sandbox.Command){
		"nothing": func(sandbox.Command) {},
		"zeros":   func(cmd sandbox.Command) { _, _ = cmd.Stdout.Write(make([]byte, 1024)) },
		"garbage": func(cmd sandbox.Command) {
			_, _ = io.WriteString(cmd.Stdout, strings.Repeat("garbage ", 1000))
		},
		"two entries": func(cmd sandbox.Command) {
			_, _ = io.WriteString(cmd.Stdout, tarOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "a"}, tar.Header{Typeflag: tar.TypeReg, Name: "b"}))
		},
		"a symlink": func(cmd sandbox.Command) {
			_, _ = io.WriteString(cmd.Stdout, tarOf(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b"}))
		},
		"endless after a header": func(cmd sandbox.Command) {
			_, _ = io.WriteString(cmd.Stdout, empty)
			endless(cmd)
		},
		"a sparse file of 8 GiB": func(cmd sandbox.Command) {
			_, _ = cmd.Stdout.Write(sparse)
			endless(cmd)
		},
		"endless": endless,
	} {
		w.backend.mu.Lock()
		w.backend.transfer = func(ctx context.Context, cmd sandbox.Command) sandbox.ExitStatus {
			write(cmd)
			return sandbox.ExitStatus{Cancelled: ctx.Err() != nil}
		}
		w.backend.mu.Unlock()
		for _, kind := range []string{fileType, archiveType} {
			a, err := send(t.Context(), http.DefaultClient, w.base, aliceToken, "GET", filesPath(id, "f"), "", "Accept", kind)
			if kind == fileType && (err != nil || a.status != 409 && (a.status != 413 || !strings.Contains(name, "sparse"))) {
				t.Errorf("%s as %s: %d %s, %v", name, kind, a.status, a.text, err)
			}
			if (strings.HasPrefix(name, "endless") || strings.Contains(name, "sparse")) && kind == archiveType && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s as %s: %d, %d bytes, %v", name, kind, a.status, len(a.text), err)
			}
			if len(a.text) > 2<<20 {
				t.Errorf("%s as %s: %d bytes", name, kind, len(a.text))
			}
		}
	}
}

// If a client reads nothing of a download, its command ends after a while, and
// the server's memory does not grow with what is copied.
func TestClientsThatDoNotRead(t *testing.T) {
	w, id, _ := newFiles(t, func(o *Options) { o.copyTime = 50 * time.Millisecond })
	ended := make(chan int, 1)
	w.backend.transfer = func(_ context.Context, cmd sandbox.Command) sandbox.ExitStatus {
		n := 0
		for piece := make([]byte, 32<<10); ; n += len(piece) {
			if _, err := cmd.Stdout.Write(piece); err != nil {
				ended <- n
				return sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
			}
		}
	}
	w.dial("GET " + filesPath(id, "f") + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\nAccept: " + archiveType + "\r\n\r\n")
	if n := <-ended; n > 64<<20 {
		t.Errorf("%d bytes were written to a client that reads nothing", n)
	}
}

// Neither direction holds more than a few pieces in memory.
func TestLargeCopies(t *testing.T) {
	w, id, _ := newFiles(t)
	const size = 256 << 20
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Size: size, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	peak := uint64(0)
	measure := func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapAlloc)
	}
	measure()
	before := peak
	w.backend.transfer = func(_ context.Context, cmd sandbox.Command) sandbox.ExitStatus {
		piece := make([]byte, 1<<20)
		if cmd.Argv[1] == guestarchive.UnpackWord {
			for n := 0; ; {
				k, err := cmd.Stdin.Read(piece)
				if n/(64<<20) != (n+k)/(64<<20) {
					measure()
				}
				if n += k; err != nil {
					return sandbox.ExitStatus{}
				}
			}
		}
		_, _ = cmd.Stdout.Write(header.Bytes())
		for n := range size >> 20 {
			_, _ = cmd.Stdout.Write(piece)
			if n%64 == 0 {
				measure()
			}
		}
		_, _ = cmd.Stdout.Write(make([]byte, 1024))
		return sandbox.ExitStatus{}
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", w.base+filesPath(id, "f"), io.LimitReader(zeroReader{}, size))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	req.Header.Set("Authorization", "Bearer "+aliceToken)
	req.Header.Set("Content-Type", fileType)
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 204 {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	req.Method, req.Body, req.ContentLength = "GET", nil, 0
	req.Header.Del("Content-Type")
	if res, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if grown := int64(peak - before); grown > 16<<20 {
		t.Errorf("%d MiB more memory for a file of %d MiB", grown>>20, size>>20)
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
