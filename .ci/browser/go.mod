// The tests of the page in a browser: what drives it takes no part in choosing the versions
// that Caisson links.
module github.com/caisson-run/caisson/ci/browser

go 1.26.5

require (
	github.com/chromedp/cdproto v0.160.1
	github.com/chromedp/chromedp v0.23.1
)

require github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
