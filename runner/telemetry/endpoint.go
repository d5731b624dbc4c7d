package telemetry

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// envContent is the variable with which OpenTelemetry's instrumentations of
// generative AI export content.
const envContent = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// Defaults of OTLP exporters.
const (
	defaultTimeout  = 10 * time.Second
	defaultEndpoint = "http://localhost:4318"
)

// SettingError reports an invalid variable or setting.
type SettingError struct {
	// Name is a variable, endpoint or headers.
	Name   string
	Reason string
}

func (e *SettingError) Error() string { return e.Name + ": " + e.Reason }

// findSignals returns where traces, metrics and logs are sent, nil for nowhere.
func (o Options) findSignals() (traces, metrics, logs *endpoint, err error) {
	if strings.EqualFold(strings.TrimSpace(o.Getenv("OTEL_SDK_DISABLED")), "true") {
		return nil, nil, nil, nil
	}
	traces, err = o.findSignal("TRACES")
	if err == nil {
		metrics, err = o.findSignal("METRICS")
	}
	if err == nil {
		logs, err = o.findSignal("LOGS")
	}
	return traces, metrics, logs, err
}

// findSignal returns where a signal is sent, or nil.
func (o Options) findSignal(signal string) (*endpoint, error) {
	exporter := "OTEL_" + signal + "_EXPORTER"
	word := strings.TrimSpace(o.Getenv(exporter))
	switch word {
	case "", "otlp":
	case "none":
		return nil, nil
	default:
		return nil, &SettingError{exporter, fmt.Sprintf("unknown exporter %q: want otlp or none", word)}
	}
	// get returns the signal's variable, or the one for all signals.
	get := func(suffix string) (name, value string) {
		name = "OTEL_EXPORTER_OTLP_" + suffix
		if own := "OTEL_EXPORTER_OTLP_" + signal + "_" + suffix; o.Getenv(own) != "" {
			name = own
		}
		return name, strings.TrimSpace(o.Getenv(name))
	}
	variable, raw := get("ENDPOINT")
	own := strings.HasPrefix(variable, "OTEL_EXPORTER_OTLP_"+signal)
	headers := map[string]string{}
	switch {
	case raw != "":
	case o.Endpoint != "":
		variable = "endpoint"
		raw = o.Endpoint
		headers = o.Headers
	case word == "otlp":
		raw = defaultEndpoint
	default:
		return nil, nil
	}
	address, err := url.Parse(raw)
	if err != nil || address.Host == "" || address.Scheme != "http" && address.Scheme != "https" {
		return nil, &SettingError{variable, "not an http or https address"}
	}
	if !own {
		address = address.JoinPath("v1", strings.ToLower(signal))
	} else if address.Path == "" {
		address.Path = "/"
	}
	if variable, protocol := get("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, &SettingError{variable, fmt.Sprintf("unsupported protocol %q: want http/protobuf, which collectors receive at port 4318", protocol)}
	}
	e := &endpoint{url: address, headers: http.Header{}, timeout: defaultTimeout}
	for k, v := range headers {
		e.headers.Set(k, v)
	}
	if variable, list := get("HEADERS"); list != "" {
		if err := e.addHeaders(list); err != nil {
			return nil, &SettingError{variable, err.Error()}
		}
	}
	if variable, text := get("TIMEOUT"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 32)
		if err != nil || ms < 0 {
			return nil, &SettingError{variable, fmt.Sprintf("invalid time %q: want milliseconds", text)}
		}
		e.timeout = cmp.Or(time.Duration(ms)*time.Millisecond, defaultTimeout)
	}
	variable, word = get("COMPRESSION")
	e.gzip = word == "gzip"
	if !e.gzip && word != "" && word != "none" {
		return nil, &SettingError{variable, fmt.Sprintf("unknown compression %q: want gzip or none", word)}
	}
	config, err := tlsConfig(get)
	if err != nil {
		return nil, err
	}
	e.makeClient(config)
	return e, nil
}

// addHeaders adds headers from a list in the form of W3C baggage:
// percent-encoded name=value, separated by commas.
func (e *endpoint) addHeaders(list string) error {
	for part := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("invalid headers: want name=value, with commas between them") // the values are secrets
		}
		e.headers.Set(name, value)
	}
	return nil
}

// Secrets returns the secret values in the headers and variables, by their
// names.
func (o Options) Secrets() map[string][]string {
	out := map[string][]string{}
	for name, value := range o.Headers {
		out["telemetry.headers."+name] = headerSecrets(value)
	}
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		name := "OTEL_EXPORTER_OTLP_" + signal + "HEADERS"
		for part := range strings.SplitSeq(o.Getenv(name), ",") {
			_, raw, _ := strings.Cut(part, "=")
			raw = strings.TrimSpace(raw)
			out[name] = append(out[name], headerSecrets(raw)...)
			if value, err := url.PathUnescape(raw); err == nil && value != raw {
				out[name] = append(out[name], headerSecrets(value)...)
			}
		}
	}
	return out
}

// headerSecrets returns a header's value, and the part after its scheme.
func headerSecrets(value string) []string {
	if value == "" {
		return nil
	}
	if _, token, ok := strings.Cut(value, " "); ok && token != "" {
		return []string{value, token}
	}
	return []string{value}
}

// tlsConfig returns the configured certificates, or nil for the system's.
func tlsConfig(get func(suffix string) (name, value string)) (*tls.Config, error) {
	variable, path := get("CERTIFICATE")
	keyVariable, key := get("CLIENT_KEY")
	_, certificate := get("CLIENT_CERTIFICATE")
	if path == "" && key == "" && certificate == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, &SettingError{variable, err.Error()}
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &SettingError{variable, path + " holds no certificate"}
		}
	}
	if key != "" || certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, &SettingError{keyVariable, err.Error()}
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
