package server

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"
)

// valuesAPI are the operations on values that are too long for their records.
type valuesAPI struct{ sessions *registry }

func (a valuesAPI) addOperations(o operations) {
	op := o.newOperation(http.MethodGet, "/sessions/{id}/values/{name}", "getValue", "A record's long value",
		`A value that was too long for its record's line. Its name is the last part of its "path" in the record's "spilled" list.`, http.StatusOK, 404)
	op.Responses["200"] = bytesResponse("application/octet-stream")
	huma.Register(o.api, op, func(_ context.Context, in *struct {
		SessionPath
		Name string `path:"name" doc:"the file's name"`
	},
	) (*huma.StreamResponse, error) {
		dir, err := a.sessions.findDir(in.ID)
		if err != nil {
			return nil, err
		}
		return a.openValue(dir, in.Name)
	})
}

var valueName = lazyRegexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (a valuesAPI) openValue(dir, name string) (*huma.StreamResponse, error) {
	none := newProblem(http.StatusNotFound, "no_value", "the session has no such value", `The "spilled" list of a record names them`)
	if !valueName().MatchString(name) {
		return nil, none
	}
	root, err := os.OpenRoot(filepath.Join(dir, "spill"))
	if err != nil {
		return nil, none
	}
	defer func() { _ = root.Close() }() // only read
	info, err := root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return nil, none
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, none
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer func() { _ = file.Close() }() // only read
		c.SetHeader("Content-Type", "application/octet-stream")
		c.SetHeader("Content-Length", strconv.FormatInt(info.Size(), 10))
		if _, err := io.CopyN(c.BodyWriter(), file, info.Size()); err != nil {
			a.sessions.log.Debug("write value", zap.Error(err))
		}
	}}, nil
}
