package server

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	guestarchive "github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools"
)

const (
	filesRoute = "/sandboxes/{id}/files"
	// archiveType and fileType are the content types of a tree and of one file.
	archiveType = "application/x-tar"
	fileType    = "application/octet-stream"
	// heldBytes is how much of a download is held back until the command has
	// ended or written more: the answer must not be complete if the command
	// fails.
	heldBytes = 64 << 10
)

// filesAPI are the operations on files of sandboxes without a model.
type filesAPI struct {
	sandboxes sandboxesAPI
	streams   *streamsAPI
	// maxBytes bounds one body. idleTime bounds the wait for a client that
	// neither sends nor reads.
	maxBytes int64
	idleTime time.Duration
}

// filesInput is the input of both operations. They read the rest of the request
// themselves, as a stream.
type filesInput struct {
	SandboxPath
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"in the sandbox, absolute or below its working directory"`
}

// Resolve implements huma.Resolver. It refuses anything but one path of a file.
func (in *filesInput) Resolve(c huma.Context) []error {
	u := c.URL()
	if strings.ContainsRune(in.Path, 0) || len(u.Query()["path"]) > 1 {
		return []error{&huma.ErrorDetail{Location: "query.path", Message: "expected one path without a NUL"}}
	}
	return nil
}

func (a filesAPI) addOperations(o operations) {
	binary := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	both := map[string]*huma.MediaType{archiveType: binary, fileType: binary}
	put := o.newOperation(http.MethodPut, filesRoute, "putFiles", "Copy files into a sandbox",
		`The body is one file, which is written to the path, or a tar archive, which is unpacked in the directory at the path.
The directory must exist. An existing file is replaced. Nothing is written through a symlink in the archive, and special files are refused. The files belong to the commands' user. After an error, complete files stay, and the same request can be sent again.`,
		http.StatusNoContent, 404, 408, 409, 410, 411, 413, 415, 422, 429, 503, 507)
	put.RequestBody = &huma.RequestBody{Required: true, Content: both}
	put.Responses["204"] = &huma.Response{Description: "Everything is written"}
	huma.Register(o.api, put, a.serveTransfers((*transfer).receiveFiles))
	get := o.newOperation(http.MethodGet, filesRoute, "getFiles", "Copy files out of a sandbox",
		`With Accept: application/x-tar, the answer is a tar archive of the path and everything below it, or of only its content if the path ends in /.; otherwise it is the bytes of one file.
Special files below the path are left out. Commands in the sandbox may have written anything, including the names in the archive. An answer that is cut off has no proper end: its connection is closed before the announced length, or before the last chunk.`,
		http.StatusOK, 404, 406, 409, 410, 413, 422, 429, 503, 505, 507)
	get.Responses["200"] = &huma.Response{Description: "The bytes", Content: both}
	huma.Register(o.api, get, a.serveTransfers((*transfer).sendFiles))
}

// serveTransfers returns the handler of an operation that copies files. If run
// returns a problem, that is the answer, or the answer is cut off if it has
// begun.
func (a filesAPI) serveTransfers(run func(*transfer) *Problem) func(context.Context, *filesInput) (*huma.StreamResponse, error) {
	return func(ctx context.Context, in *filesInput) (*huma.StreamResponse, error) {
		live, err := a.sandboxes.requireSandbox(in.ID)
		if err != nil {
			return nil, err
		}
		release, err := a.streams.takeStream(clientOf(ctx).label)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			defer release()
			r, w := humago.Unwrap(c)
			t := &transfer{filesAPI: a, live: live, path: in.Path, w: w, r: r, wire: http.NewResponseController(w)}
			t.ctx, t.cancel = context.WithCancelCause(r.Context())
			defer t.cancel(nil)
			p := run(t)
			if p == nil {
				return
			}
			if t.out.committed() {
				live.log.Info("a download was cut off", zap.String("session", live.id), zap.String("cause", p.Detail))
				panic(http.ErrAbortHandler)
			}
			w.Header().Del("Content-Length") // it was the file's
			live.writeProblem(w, r, p)
		}}, nil
	}
}

type transfer struct {
	filesAPI
	live   *session
	path   string
	w      http.ResponseWriter
	r      *http.Request
	wire   *http.ResponseController
	ctx    context.Context //nolint:containedctx // of the request and the command
	cancel context.CancelCauseFunc
	out    heldResponse
}

// runCommand runs a command that packs or unpacks, and waits for its end.
func (t *transfer) runCommand(command runner.UserCommand) *Problem {
	text := &limits.Head{Size: 4 << 10}
	command.Stderr, command.Client = text, clientOf(t.ctx).name()
	r, err := t.live.run.Exec(t.ctx, command)
	switch {
	case err != nil:
		return t.live.commandProblem(err)
	case r.Status.Cancelled && t.ctx.Err() == nil:
		return sandboxEnded(t.live.id)
	}
	cause, _ := tools.DisplayLines(strings.TrimSpace(text.String()))
	cause = strings.TrimRight(cause, ".")
	switch s := r.Status; {
	case s.Success():
		return nil
	case s.Cause() != "" || s.Signal != 0 || cause == "":
		cause = strings.TrimSpace(fmt.Sprintf("the command that copies ended with %s. %s", s, cause))
	case s.Code == guestarchive.StatusNoFile:
		return newProblem(http.StatusNotFound, "no_file", cause, "Name a file or directory of the sandbox")
	case s.Code == guestarchive.StatusNoDirectory:
		return newProblem(http.StatusNotFound, "no_directory", cause, "Make the directory first")
	case s.Code == guestarchive.StatusRefused && t.r.Method == http.MethodPut:
		return newProblem(http.StatusUnprocessableEntity, "archive", cause, "Send a complete archive with only files, directories and symlinks")
	case s.Code == guestarchive.StatusRefused:
		return newProblem(http.StatusConflict, "not_a_file", cause, "Name a file or a directory")
	}
	return newProblem(http.StatusConflict, "not_copied", cause, "Files that were copied before stay; remove what is in the way, or name another path")
}

func (t *transfer) receiveFiles() *Problem {
	media, _, err := mime.ParseMediaType(t.r.Header.Get("Content-Type"))
	switch {
	case err != nil || len(t.r.Header.Values("Content-Type")) > 1 || media != archiveType && media != fileType:
		return newProblem(http.StatusUnsupportedMediaType, "content_type", "files are sent as "+fileType+" or "+archiveType, "Send one of these as Content-Type")
	case t.r.ContentLength > t.maxBytes:
		return t.tooLarge("the body is")
	}
	body := &uploadBody{body: http.MaxBytesReader(t.w, t.r.Body, t.maxBytes), wire: t.wire, idleTime: t.idleTime, cancel: t.cancel, ended: make(chan struct{})}
	dir, in := t.path, io.Reader(body)
	if media == fileType {
		if t.r.ContentLength < 0 {
			return newProblem(http.StatusLengthRequired, "length", "the length of the file is unknown", "Send Content-Length, or an archive")
		}
		var name string
		dir, name = path.Split(t.path)
		if name == "" || name == "." || name == ".." {
			return newProblem(http.StatusUnprocessableEntity, "invalid", "the path does not end with the name of a file", "Name the file, or send an archive")
		}
		if in, err = wrapFile(name, t.r.ContentLength, body); err != nil {
			return newProblem(http.StatusUnprocessableEntity, "invalid", "the file's name can't be used", "Name another path")
		}
		if dir == "" {
			dir = "."
		}
	}
	p := t.runCommand(runner.UnpackCommand(dir, in))
	err = body.finish(t.ctx.Err() != nil)
	if out, ok := t.w.(*response); ok && errors.Is(err, io.EOF) && !body.forced {
		out.unread = false
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return t.tooLarge("the body is")
	case isTimeout(err):
		return newProblem(http.StatusRequestTimeout, "too_slow", fmt.Sprintf("the body paused for %s", t.idleTime), "Send it again; complete files stay")
	case err != nil && !errors.Is(err, io.EOF):
		return newProblem(http.StatusBadRequest, "malformed", "the body could not be read to its end", "Send it again; complete files stay")
	case p == nil && err == nil:
		return newProblem(http.StatusUnprocessableEntity, "archive", "the body continues after the end of the archive", "Send only the archive")
	case p != nil:
		return p
	}
	t.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (t *transfer) tooLarge(what string) *Problem {
	return newProblem(http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("%s larger than %d bytes", what, t.maxBytes),
		"Copy less at once, or raise max_transfer of serve in the configuration")
}

func wrapFile(name string, size int64, content io.Reader) (io.Reader, error) {
	var header bytes.Buffer
	err := tar.NewWriter(&header).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644, ModTime: time.Now()})
	const block = 512
	padding := (block - size%block) % block
	return io.MultiReader(&header, content, bytes.NewReader(make([]byte, padding+2*block))), err
}

// uploadBody is a request's body as a command's input. If the body fails, Read
// cancels the command and returns only once it has ended: the command would
// take the error for the end of the archive.
type uploadBody struct {
	body     io.Reader
	wire     *http.ResponseController
	idleTime time.Duration
	cancel   context.CancelCauseFunc
	ended    chan struct{} // closed when the command has ended

	mu     sync.Mutex // held while the body is read
	err    error      // io.EOF at the end of the body
	forced bool       // finish ended a read
	// failed reports that the request ended before the command. It is set
	// before ended is closed.
	failed bool
}

func (b *uploadBody) Read(p []byte) (int, error) {
	n, err := b.readBody(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.cancel(err)
		<-b.ended
	}
	return n, err
}

func (b *uploadBody) readBody(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	err = b.wire.SetReadDeadline(time.Now().Add(b.idleTime))
	if b.hasEnded() {
		return 0, io.ErrClosedPipe
	}
	if err == nil {
		n, err = b.body.Read(p)
	}
	switch {
	case errors.Is(err, io.EOF):
		b.err = err
		_ = b.wire.SetReadDeadline(time.Time{}) // net/http now reads, to notice the connection's end
	case !b.hasEnded() || b.failed: // otherwise finish ended the read
		b.err = err
	}
	return n, err
}

func (b *uploadBody) hasEnded() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// finish is called after the end of the command. It waits until the body is no
// longer read, and returns why: io.EOF at its end, nil if the command wanted no
// more. failed reports that the request's context had ended by then: net/http
// ends it when a read fails, before the read returns, and the command may end
// before it does.
func (b *uploadBody) finish(failed bool) error {
	b.failed = failed
	close(b.ended)
	b.forced = !b.mu.TryLock()
	if b.forced {
		_ = b.wire.SetReadDeadline(time.Unix(1, 0)) // the connection is closed next
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	return b.err
}

func (t *transfer) sendFiles() *Problem {
	asArchive, ok := acceptsArchive(t.r.Header.Values("Accept"))
	switch {
	case !ok:
		return newProblem(http.StatusNotAcceptable, "not_acceptable", "files are sent as "+fileType+" or "+archiveType, "Name one of these in Accept")
	case asArchive && !t.r.ProtoAtLeast(1, 1):
		return newProblem(http.StatusHTTPVersionNotSupported, "http_version", "an archive that is cut off would look complete with HTTP/1.0", "Use HTTP/1.1")
	}
	t.out = heldResponse{w: t.w, wire: t.wire, idleTime: t.idleTime, left: t.maxBytes, cancel: t.cancel}
	t.w.Header().Set("Content-Type", fileType)
	var p *Problem
	if asArchive {
		t.w.Header().Set("Content-Type", archiveType)
		name := path.Base(t.path)
		if strings.HasSuffix(t.path, "/.") || name == "/" || name == ".." {
			name = "."
		}
		p = t.runCommand(runner.PackCommand(t.path, name, &t.out))
	} else {
		p = t.sendFile()
	}
	err := t.out.finish(p == nil)
	switch {
	case errors.Is(err, guestarchive.ErrBound):
		return t.tooLarge("what is at the path is")
	case err != nil:
		return newProblem(http.StatusRequestTimeout, "too_slow", "the answer could not be written", "Read it faster")
	}
	return p
}

func (t *transfer) sendFile() *Problem {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := t.sendEntry(r)
		if err != nil {
			t.cancel(err)
		}
		_ = r.CloseWithError(io.ErrClosedPipe) // ends the command's output
		sent <- err
	}()
	p := t.runCommand(runner.PackCommand(t.path, "file", w))
	_ = w.CloseWithError(io.EOF) // always nil
	err := <-sent
	if refused, ok := errors.AsType[*Problem](err); ok {
		return refused
	}
	if p == nil && err != nil { // processes in the sandbox can end or change the command
		return newProblem(http.StatusConflict, "not_copied", "the sandbox sent no complete file", "Try again")
	}
	return p
}

// sendEntry sends the only entry of an archive, a regular file, and reads the
// archive to its end.
func (t *transfer) sendEntry(r io.Reader) error {
	in := tar.NewReader(r)
	h, err := in.Next()
	switch {
	case err != nil:
		return err
	case h.Typeflag == tar.TypeDir:
		return newProblem(http.StatusConflict, "not_a_file", "the path is a directory", "Ask for an archive of it with Accept: "+archiveType)
	case h.Typeflag != tar.TypeReg:
		return newProblem(http.StatusConflict, "not_a_file", "the path is not a regular file", "Name the file that a symlink leads to, or ask for an archive with Accept: "+archiveType)
	case h.Size > t.maxBytes:
		return t.tooLarge("the file is")
	}
	t.w.Header().Set("Content-Length", strconv.FormatInt(h.Size, 10))
	if _, err := io.Copy(&t.out, in); err != nil {
		return err
	}
	if _, err := in.Next(); !errors.Is(err, io.EOF) {
		return errors.New("more than one entry")
	}
	if _, err := io.CopyN(io.Discard, r, heldBytes); err == nil {
		return errors.New("it goes on after its end")
	}
	return nil
}

// acceptsArchive reports whether the first type in accept that can be sent is
// an archive. ok is false if the client accepts neither an archive nor a file's
// bytes.
func acceptsArchive(accept []string) (wanted, ok bool) {
	list := strings.Join(accept, ",")
	if strings.TrimSpace(list) == "" {
		return false, true
	}
	for kind := range strings.SplitSeq(list, ",") {
		media, parameters, err := mime.ParseMediaType(kind)
		if q, qerr := strconv.ParseFloat(parameters["q"], 64); err != nil || qerr == nil && q == 0 {
			continue
		}
		switch media {
		case archiveType:
			return true, true
		case fileType, "application/*", "*/*":
			return false, true
		}
	}
	return false, false
}

// heldResponse is the answer to a download, as the output of a command. It
// holds the last bytes back until finish is called. So an answer is never
// complete if the command failed, and a short one can still become a problem.
type heldResponse struct {
	w        http.ResponseWriter
	wire     *http.ResponseController
	idleTime time.Duration
	left     int64 // bytes that may still be written
	cancel   context.CancelCauseFunc

	mu       sync.Mutex
	held     []byte
	started  bool
	finished bool
	err      error
}

// Write implements io.Writer. An error also cancels the command.
func (h *heldResponse) Write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finished {
		return 0, io.ErrClosedPipe
	}
	for n < len(p) && h.err == nil {
		if len(h.held) == heldBytes {
			h.sendHeld()
		}
		part := p[n:min(len(p), n+heldBytes-len(h.held))]
		if h.left -= int64(len(part)); h.left < 0 && h.err == nil {
			h.err = guestarchive.ErrBound
		}
		h.held = append(h.held, part...)
		n += len(part)
	}
	if h.err != nil {
		h.cancel(h.err)
	}
	return n, h.err
}

func (h *heldResponse) sendHeld() {
	if !h.started {
		h.started = true
		h.w.WriteHeader(http.StatusOK)
	}
	h.err = h.wire.SetWriteDeadline(time.Now().Add(h.idleTime))
	if h.err == nil && len(h.held) > 0 {
		_, h.err = h.w.Write(h.held)
	}
	h.held = h.held[:0]
}

// finish ends the answer. If whole is true, it sends the rest. It returns the
// error that prevented the answer, if any.
func (h *heldResponse) finish(whole bool) error {
	if !whole {
		_ = h.wire.SetWriteDeadline(time.Unix(1, 0)) // ends a write that outlasts a cancelled command
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished = true
	if whole && h.err == nil {
		if !h.started {
			h.w.Header().Set("Content-Length", strconv.Itoa(len(h.held)))
		}
		h.sendHeld()
	}
	return h.err
}

func (h *heldResponse) committed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.started
}
