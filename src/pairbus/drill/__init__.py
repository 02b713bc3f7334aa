"""The drill: rehearses an outage with two brokers, traffic, a fault and the return, and reports the result.

`plan`, `traffic`, `timeline`, `verdict`, `chart` and `page` are pure; `rehearsal`, `processes`, `worker`, `syphon` and
`run` own processes and Spark. The command `pairbus drill` is its only user; it may import everything else.
"""
