"""Cases of hostile overrides."""

from __future__ import annotations

from tests.attack.cases import Case

CASES = [
    Case('half a character', 'name=\ud800', 'fault', 'the override contains an unpaired surrogate'),
    Case('half a character in a key', '\ud800=1', 'fault', 'the override contains an unpaired surrogate'),
    Case('500 keys', '.'.join(['a'] * 500) + '=1', 'fault', 'limit: spec_depth'),
    Case('5000 keys', '.'.join(['a'] * 5000) + '=1', 'fault', 'limit: spec_depth'),
    Case('30 keys', '.'.join(['a'] * 30) + '=1', 'fault', "unknown key 'a'"),
    Case('no key', '=1', 'fault', 'not an override'),
    Case('no value', 'name=', 'fault', "the spec has no 'name'"),
    Case('nothing', '', 'fault', 'not an override'),
    Case('only dots', '....=1', 'fault', 'not an override'),
    Case('a tag', 'name=!!bool foo', 'fault', 'this value cannot be read'),
    Case('a bomb of ones', 'name=!!int "' + ':'.join(['1'] * 300000) + '"', 'fault', 'limit: spec_digits'),
    Case('deep', 'name=' + '[' * 9000, 'fault', 'limit: spec_depth'),
    Case('an anchor', 'name=*a', 'fault', 'not valid YAML: no anchor `&NAME` stands before this alias `*NAME`'),
    Case('two lines', 'name=a\nroles: {}', 'valid', ''),
    Case('an escape', 'name="\\e[31m"', 'fault', "name cannot be '\\x1b[31m'"),
    Case('a raw escape', 'name=\x1b[31m', 'fault', 'not valid YAML: character U+001B is not allowed'),
    Case('a raw NUL', 'name=\x00', 'fault', 'not valid YAML: character U+0000 is not allowed'),
    Case('a long value', 'name=' + 'a' * 99999, 'fault', "name cannot be 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
    Case('a key of a role', 'roles.zz.count=1', 'fault', "no role 'zz'"),
    Case('a key in a number', 'rolegraph.a.b=1', 'fault', "rolegraph is not a mapping, so it has no 'a'"),
    Case('many values', 'description=[' + ','.join(['a'] * 50000) + ']', 'fault', 'limit: spec_values'),
    Case('nan', 'sampling.temperature=.nan', 'fault', 'temperature cannot be nan'),
    Case('a device', 'roles.a.prompt=/dev/zero', 'fault', "'/dev/zero' is no template"),
    Case('a prompt that is a number', 'roles.a.prompt=7', 'fault', 'prompt cannot be 7'),
    Case('a prompt of lists', 'roles.a.prompt=[[[]]]', 'fault', 'prompt cannot be a list'),
    Case('a tool that is a number', 'roles.a={run: 7}', 'fault', 'run cannot be 7'),
    Case('a byte order mark', 'roles.solvers.verifier="\ufeff"', 'fault', "no role 'solvers'"),
    Case('a replay of a device', 'model=replay:/dev/zero', 'valid', ''),
    Case('a merge', 'roles={<<: {a: 1}}', 'fault', 'a cannot be 1'),
]
