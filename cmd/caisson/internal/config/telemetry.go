package config

import (
	"strings"

	"github.com/caisson-run/caisson/runner/telemetry"
)

// Telemetry names a collector.
type Telemetry struct {
	Endpoint *string           `yaml:"endpoint" doc:"address of a collector that receives OTLP over HTTP, such as http://localhost:4318"`
	Headers  map[string]string `yaml:"headers" doc:"headers of each request to it, by name" each:"value of a header; $NAME is that of a variable"`
	Content  *bool             `yaml:"content" default:"false" doc:"also export messages, arguments and results"`
}

// Options returns the options of an exporter. A header whose variable is not set is an
// [Error]; the options are without it then.
func (t *Telemetry) Options(getenv func(string) (string, bool)) (telemetry.Options, error) {
	o := telemetry.Options{
		Getenv:   func(name string) string { v, _ := getenv(name); return v },
		Endpoint: valueOr(t.Endpoint, ""), Headers: map[string]string{}, Content: valueOr(t.Content, false),
	}
	var err error
	for name, value := range t.Headers {
		if variable, ok := strings.CutPrefix(value, "$"); ok {
			if value, ok = getenv(variable); !ok {
				err = &Error{Where: "telemetry.headers." + name, Message: "the variable " + variable + " is not set", Hint: "set it, or write the header's value"}
				continue
			}
		}
		o.Headers[name] = value
	}
	return o, err
}
