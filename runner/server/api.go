package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// apiVersion is the version of the API, not of the program.
const apiVersion = "1"

const apiText = `Run agents in sandboxes: start a session, send it messages, follow its records, answer its questions, look at its changes.

Every request except GET /healthz needs a token: Authorization: Bearer TOKEN. The security entry of each operation names the role that its token needs: read, run, approve or admin; admin includes the others. Errors are application/problem+json (RFC 9457); code is a stable word.`

// SessionPath is the path of a session.
type SessionPath struct {
	ID string `path:"id" doc:"a session's id"`
}

// TurnPath is the path of a turn.
type TurnPath struct {
	SessionPath
	Turn string `path:"turn" doc:"a turn's id"`
}

type body[T any] struct{ Body T }

// sessionRequest is a JSON request about a session.
type sessionRequest[T any] struct {
	SessionPath
	Body T
}

// created is the answer about something new.
type created[T any] struct {
	Location string `header:"Location"`
	Body     T
}

func registerRoutes(mux *http.ServeMux, d *diagnostics, resources ...resource) ([]byte, error) {
	config := huma.DefaultConfig("Caisson", apiVersion)
	config.Info.Description = apiText
	config.OpenAPIPath, config.DocsPath, config.SchemasPath = "", "", "" // the first is served below; the others load scripts from other sites
	config.CreateHooks = nil                                             // no $schema in answers
	config.Formats = map[string]huma.Format{"application/json": jsonFormat(), "json": jsonFormat()}
	config.Transformers = []huma.Transformer{asOwnProblem}
	config.RejectUnknownQueryParameters = true
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	api := humago.New(mux, config)
	o := operations{api}
	for _, r := range resources {
		r.addOperations(o)
	}
	if err := checkRoutes(api.OpenAPI(), routeRoles); err != nil {
		return nil, err
	}
	doc, err := o.marshalDocument()
	if err != nil {
		return nil, err
	}
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openapi+json")
		d.writeBytes(w, doc)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		d.writeBytes(w, []byte("ok\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}))
	return doc, nil
}

type resource interface {
	addOperations(operations)
}

type operations struct{ api huma.API }

func (o operations) newOperation(method, path, id, summary, text string, status int, errors ...int) huma.Operation {
	schema := o.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	op := huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, Description: text, DefaultStatus: status,
		BodyReadTimeout: -1, MaxBodyBytes: maxBodyBytes + 1, // the guard has read and bounded it
		Responses: map[string]*huma.Response{},
		Security:  []map[string][]string{{"token": {string(routeRoles[method+" "+path])}}},
	}
	errors = append(errors, http.StatusForbidden)
	content := map[string]*huma.MediaType{problemType: {Schema: schema}}
	for _, status := range errors {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: content}
	}
	op.Responses["default"] = &huma.Response{Description: "Any other error", Content: content}
	return op
}

func bytesResponse(kind string) *huma.Response {
	return &huma.Response{Description: "The bytes", Content: map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}}
}

// checkRoutes returns an error if roles lacks an operation of the document.
func checkRoutes(doc *huma.OpenAPI, roles map[string]Role) error {
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPut: item.Put, http.MethodPost: item.Post, http.MethodDelete: item.Delete,
			http.MethodOptions: item.Options, http.MethodHead: item.Head, http.MethodPatch: item.Patch, http.MethodTrace: item.Trace,
		} {
			if _, listed := roles[method+" "+path]; op != nil && !listed {
				return fmt.Errorf("no role is set for %s %s", method, path)
			}
		}
	}
	return nil
}

func (o operations) marshalDocument() ([]byte, error) {
	schemas := o.api.OpenAPI().Components.Schemas.Map()
	for _, name := range []string{"ErrorModel", "ErrorDetail"} {
		delete(schemas, name) // huma's own errors, which no answer has
	}
	// Answers may get more fields; requests may not have any.
	requests := []string{"Answer", "ApplyRequest", "NewExec", "NewSandbox", "NewSession", "NewTerminal", "NewTurn", "ResumeSession", "SessionLimits", "TerminalSize", "TotalLimits", "TurnLimits"}
	for name, schema := range schemas {
		if !slices.Contains(requests, name) && schema.AdditionalProperties == false {
			schema.AdditionalProperties = nil
		}
	}
	text, err := json.Marshal(o.api.OpenAPI())
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
