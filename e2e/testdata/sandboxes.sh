# Uses sandboxes over HTTP with curl: sandboxes.sh URL FIRST LAST. Each request is sent again
# until it has its whole answer, as the connection may be cut anywhere.
set -eu
url=$1 n=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

# complete reports whether the last answer's headers end with an empty line: curl takes those
# that are cut off for all of the answer.
complete() {
	[ "$(tail -n 1 headers)" = "$(printf '\r')" ]
}

# request OUTPUT ARGUMENT... writes an answer to a file.
request() {
	out=$1
	shift
	tries=0
	until curl -sS --fail-with-body --max-time 60 -o "$out" -D headers -H "Authorization: Bearer $CONTROL_TOKEN" "$@" 2>error && complete; do
		tries=$((tries + 1))
		if [ $tries -ge 100 ] || grep -q '^curl: (22)' error; then
			cat error "$out" >&2
			exit 1
		fi
	done
}
json='Content-Type: application/json'
bytes='Content-Type: application/octet-stream'
tree='Content-Type: application/x-tar'

while [ "$n" -le "$3" ]; do
	request made "$url/sandboxes" -H "$json" -H "Idempotency-Key: curl-start-$n" -d '{}'
	id=$(grep -o 'ses_[0-9A-Z]*' made | head -n 1)
	files="$url/sandboxes/$id/files?path"
	head -c 200000 /dev/urandom >data
	request answer -H "$bytes" -T data "$files=data"
	for i in 0 1 2; do
		request events -N "$url/sandboxes/$id/exec" -H "$json" -H "Idempotency-Key: curl-exec-$n-$i" \
			-d "{\"argv\":[\"sh\",\"-c\",\"echo $i >> count; mkdir ran-$i || exit 9; cp data copy; echo one; sleep 0.02; echo two\"]}"
		grep '^event: exit' -A 1 events | grep -q '"status":0'
		[ "$(grep '^event: stdout' -A 1 events | grep -o '"text":"[^"]*"' | sed 's/"text":"//; s/"$//' | tr -d '\n')" = 'one\ntwo\n' ]
	done
	request copy "$files=copy"
	cmp data copy
	mkdir -p in/tree out
	cp data in/tree/
	tar -cf tree.tar -C in tree
	request answer -X PUT -H "$tree" --data-binary @tree.tar "$files=."
	request tree.tar -H 'Accept: application/x-tar' "$files=tree"
	tar -xf tree.tar -C out
	cmp data out/tree/data
	request count "$files=count"
	[ "$(tr '\n' ' ' <count)" = '0 1 2 ' ]
	request ended -X DELETE "$url/sandboxes/$id"
	grep -q '"state":"ended"' ended
	echo "sandbox $id ran 3"
	n=$((n + 1))
done
